"""Encodes and decodes frames without copying the payload, and registers `Forward` with this codec.

The encoding is that of `stage_pb2.Frame`, so other clients can use the generated types. Protobuf
would copy the payload; instead it is located by a scan of the top-level fields and appended after
the other fields.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from protos import stage_pb2
from runtime.errors import FrameError

# Payload bytes of one frame; chosen with `python -m benchmarks.hop`.
CHUNK_BYTES = 1 << 20

_SERVICE = "stagemesh.v1.Stage"
_LENGTH_DELIMITED = 2
_PAYLOAD_TAG = stage_pb2.Frame.PAYLOAD_FIELD_NUMBER << 3 | _LENGTH_DELIMITED
_MAX_VARINT_BYTES = 10
_NO_BYTES = memoryview(b"")


@dataclass(frozen=True, slots=True)
class WireFrame:
    """One frame: all fields except the payload in `head`, and a view of the payload."""

    head: stage_pb2.Frame
    payload: memoryview = _NO_BYTES


ForwardContext: TypeAlias = grpc.aio.ServicerContext[WireFrame, stage_pb2.Credit]
ForwardCall: TypeAlias = grpc.aio.StreamStreamCall[WireFrame, stage_pb2.Credit]


def encode_frame(frame: WireFrame) -> bytes:
    """Serializes `frame`; the contiguous payload is copied once, into the message."""
    head = frame.head.SerializeToString()
    if not frame.payload.nbytes:
        return head
    return b"".join(
        (head, _varint(_PAYLOAD_TAG), _varint(frame.payload.nbytes), frame.payload),
    )


def decode_frame(data: bytes) -> WireFrame:
    """Parses a frame; its payload is a view of `data`. Raises FrameError if it is malformed."""
    view = memoryview(data)
    heads: list[memoryview] = []
    payload = view[:0]
    position = 0
    while position < len(data):
        begin = position
        tag, position = _read_varint(data, begin)
        position, end = _field_extent(data, tag & 7, position)
        if end > len(data):
            raise _broken(f"a field that ends at byte {end} of {len(data)}")
        if tag == _PAYLOAD_TAG:
            payload = view[position:end]
        else:
            heads.append(view[begin:end])
        position = end
    head = stage_pb2.Frame()
    try:
        head.ParseFromString(b"".join(heads))
    except DecodeError as error:
        raise _broken(str(error)) from error
    return WireFrame(head, payload)


def add_forward_handler(
    server: grpc.aio.Server, handler: Callable[[Any, ForwardContext], Awaitable[None]]
) -> None:
    """Serves `Forward` with this codec; call it after the generated `add_StageServicer_to_server`.

    The later registration replaces the generated handler of this method only.
    """
    method = grpc.stream_stream_rpc_method_handler(
        handler,
        request_deserializer=decode_frame,
        response_serializer=stage_pb2.Credit.SerializeToString,
    )
    server.add_registered_method_handlers(_SERVICE, {"Forward": method})


def open_forward(channel: grpc.aio.Channel) -> ForwardCall:
    """Starts a `Forward` call that writes `WireFrame`s and reads credits."""
    method = channel.stream_stream(
        f"/{_SERVICE}/Forward",
        request_serializer=encode_frame,
        response_deserializer=stage_pb2.Credit.FromString,
    )
    return method()


def epoch_name(epoch: stage_pb2.EpochId) -> str:
    """The name of an epoch in errors and logs."""
    return f"{epoch.coordinator_id}/{epoch.counter}"


def _field_extent(data: bytes, wire_type: int, position: int) -> tuple[int, int]:
    """The begin and end of a field's value; `position` is the end of its tag."""
    match wire_type:
        case 0:  # varint
            return position, _read_varint(data, position)[1]
        case 1:  # fixed 64 bits
            return position, position + 8
        case 2:  # length-delimited
            size, begin = _read_varint(data, position)
            return begin, begin + size
        case 5:  # fixed 32 bits
            return position, position + 4
        case _:
            raise _broken(f"wire type {wire_type}")


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(data[position : position + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, position + index + 1
    raise _broken(f"an unfinished number at byte {position}")


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _broken(actual: str) -> FrameError:
    return FrameError(what="frame encoding", expected="a protobuf Frame", actual=actual)
