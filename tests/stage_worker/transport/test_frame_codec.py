"""The frame codec against protobuf's own, in both directions."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos import stage_pb2
from runtime.errors import FrameError
from stage_worker.transport.frame_codec import WireFrame, decode_frame, encode_frame

_UINT32 = st.integers(0, 2**32 - 1)
_UINT64 = st.integers(0, 2**64 - 1)
_HEADERS = st.none() | st.builds(
    stage_pb2.StepHeader, step=_UINT64, released_slots=st.lists(_UINT32, max_size=4)
)
_SPECS = st.none() | st.builds(
    stage_pb2.ActivationSpec,
    dtype=st.sampled_from(stage_pb2.DType.values()),
    num_tokens=_UINT32,
    hidden_begin=_UINT32,
    hidden_end=_UINT32,
)
_HEADS = st.builds(
    stage_pb2.Frame,
    epoch=st.none() | st.builds(stage_pb2.EpochId, coordinator_id=st.text(), counter=_UINT64),
    step=_UINT64,
    sender_rank=_UINT32,
    header=_HEADERS,
    activation=_SPECS,
    offset=_UINT64,
    last=st.booleans(),
)
_PAYLOADS = st.binary(max_size=300)


def _with_payload(head: stage_pb2.Frame, payload: bytes) -> stage_pb2.Frame:
    frame = stage_pb2.Frame()
    frame.CopyFrom(head)
    frame.payload = payload
    return frame


@given(_HEADS, _PAYLOADS)
def test_encode_frame_any_frame_is_what_protobuf_writes(
    head: stage_pb2.Frame, payload: bytes
) -> None:
    encoded = encode_frame(WireFrame(head, memoryview(payload)))

    assert encoded == _with_payload(head, payload).SerializeToString()


@given(_HEADS, _PAYLOADS)
def test_decode_frame_written_by_protobuf_gives_head_and_payload(
    head: stage_pb2.Frame, payload: bytes
) -> None:
    frame = decode_frame(_with_payload(head, payload).SerializeToString())

    assert frame.head == head
    assert frame.payload == payload


@given(_HEADS, _PAYLOADS)
def test_decode_frame_payload_first_gives_the_same(head: stage_pb2.Frame, payload: bytes) -> None:
    payload_only = stage_pb2.Frame(payload=payload).SerializeToString()

    frame = decode_frame(payload_only + head.SerializeToString())

    assert frame.head == head
    assert frame.payload == payload


@given(st.binary(max_size=200))
def test_decode_frame_any_bytes_gives_a_frame_or_a_frame_error(data: bytes) -> None:
    with suppress(FrameError):
        assert decode_frame(data).payload.nbytes <= len(data)


def test_decode_frame_fields_of_later_versions_are_kept() -> None:
    fixed32, fixed64 = b"\xfd\x01" + bytes(4), b"\xf9\x01" + bytes(8)

    frame = decode_frame(fixed32 + stage_pb2.Frame(step=7).SerializeToString() + fixed64)

    assert frame.head.step == 7


def test_decode_frame_payload_is_not_copied() -> None:
    data = encode_frame(WireFrame(stage_pb2.Frame(step=1), memoryview(b"abc")))

    assert decode_frame(data).payload.obj is data


@pytest.mark.parametrize(
    "data",
    [
        b"\x7a\x05abc",  # payload longer than the message
        b"\x7a",  # no length
        b"\x0b",  # a group
        b"\xff" * 11,  # a number that never ends
        b"\x0a\x02\xff\xff",  # epoch that is no message
    ],
)
def test_decode_frame_malformed_raises_frame_error(data: bytes) -> None:
    with pytest.raises(FrameError, match="frame encoding: expected a protobuf Frame, got"):
        decode_frame(data)
