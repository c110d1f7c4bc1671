"""Sends steps to one rank of the next stage: the header unchanged, the activation in chunks.

There is one stream per epoch. A step is sent once a credit is available, so a slow next stage
delays this one. Any end of the stream ends the epoch; there are no retries. Health checks use a
separate connection, where responses do not wait behind activations: a slow link is not a failure.

Shape suffixes: T tokens of the step, H the interval of the hidden dimension that is sent.
"""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import grpc
import grpc.aio
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc

from protos import stage_pb2
from runtime.errors import EpochEndedError, FrameError, NextStageError, WindowExceededError
from runtime.rpc import channels
from stage_worker.transport.frame_codec import CHUNK_BYTES, ForwardCall, WireFrame, open_forward
from stage_worker.transport.hidden_partition import Interval

_CONNECT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class LinkPlan:
    """What this rank sends to one rank of the next stage during one epoch."""

    epoch: stage_pb2.EpochId
    sender_rank: int
    address: str
    window: int
    dtype: stage_pb2.DType
    hidden_interval: Interval
    tls: channels.ChannelTls | None = None


@dataclass(frozen=True, slots=True)
class SendResult:
    """The size of a sent step; `ended_at` is `time.monotonic` after the last frame's write."""

    ended_at: float
    num_frames: int
    num_bytes: int


class StageSender:
    """An open stream to one rank of the next stage; an async context manager."""

    def __init__(self, plan: LinkPlan) -> None:
        self._plan = plan
        self._channel = channels.dial(plan.address, plan.tls, is_bulk=True)
        self._side_channel = channels.dial(plan.address, plan.tls)
        self._call: ForwardCall = open_forward(self._channel)
        self._credits = asyncio.Semaphore(plan.window)
        self._num_begun = 0

    async def __aenter__(self) -> Self:
        """Waits until the next stage has accepted the stream."""
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                await self._call.initial_metadata()
            if self._call.done():
                code = await self._call.code()
                raise self._ended(f"{await self._call.details()} ({code.name})")
        except TimeoutError:
            await self.close()
            raise self._ended(f"no answer within {_CONNECT_SECONDS:.0f} s") from None
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the stream, on which the next stage ends its epoch."""
        self._call.cancel()
        await self._channel.close()
        await self._side_channel.close()

    async def watch(self) -> None:
        """Raises EpochEndedError once the next stage is unreachable; may return before."""
        health: Any = health_pb2_grpc.HealthStub(self._side_channel)
        try:
            async for _ in health.Watch(health_pb2.HealthCheckRequest()):
                pass
        except grpc.aio.AioRpcError as error:
            # Any other status comes from the next stage itself, so it is alive.
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                raise self._broken(error) from error

    async def read_credits(self) -> None:
        """Receives credits; never returns, and raises EpochEndedError when the stream ends."""
        expected = 0
        while True:
            try:
                credit = await self._call.read()
            except grpc.aio.AioRpcError as error:
                raise self._broken(error) from error
            if not isinstance(credit, stage_pb2.Credit):
                raise self._ended("it closed the stream")
            if credit.step != expected:
                raise FrameError(what="step of a credit", expected=expected, actual=credit.step)
            if expected >= self._num_begun:
                raise WindowExceededError(step=credit.step, window=self._plan.window)
            expected += 1
            self._credits.release()

    async def send(
        self, header: stage_pb2.StepHeader, hidden_TH: torch.Tensor | None
    ) -> SendResult:
        """Sends one step once there is a credit; `hidden_TH` is on the host and contiguous."""
        await self._credits.acquire()
        self._num_begun += 1
        num_frames = num_bytes = 0
        try:
            for frame in step_frames(self._plan, header, hidden_TH):
                await self._call.write(frame)
                num_frames += 1
                num_bytes += frame.head.ByteSize() + frame.payload.nbytes
        except grpc.aio.AioRpcError as error:
            raise self._broken(error) from error
        except asyncio.InvalidStateError as error:
            raise self._ended("it closed the stream") from error
        return SendResult(time.monotonic(), num_frames, num_bytes)

    def _broken(self, error: grpc.aio.AioRpcError) -> EpochEndedError:
        end = channels.epoch_error_from_rpc(error, self._name)
        # gRPC's own status: the next stage has sent none.
        is_gone = end.cause == grpc.StatusCode.UNAVAILABLE.name.lower()
        return self._ended(error.details() or end.cause) if is_gone else end

    def _ended(self, detail: str) -> NextStageError:
        address = self._plan.address
        return NextStageError(cause="next_stage", detail=f"{self._name}: {detail}", address=address)

    @property
    def _name(self) -> str:
        return f"next stage {self._plan.address}"


def step_frames(
    plan: LinkPlan, header: stage_pb2.StepHeader, hidden_TH: torch.Tensor | None
) -> Iterator[WireFrame]:
    """One step's frames, one for each chunk of the payload, which is not copied."""
    payload = memoryview(b"") if hidden_TH is None else _bytes_of(hidden_TH)
    for offset in range(0, max(payload.nbytes, 1), CHUNK_BYTES):
        head = stage_pb2.Frame(
            epoch=plan.epoch,
            step=header.step,
            sender_rank=plan.sender_rank,
            offset=offset,
            last=offset + CHUNK_BYTES >= payload.nbytes,
        )
        if offset == 0:
            head.header.CopyFrom(header)
            if hidden_TH is not None:
                head.activation.CopyFrom(_activation_spec(plan, hidden_TH))
        yield WireFrame(head, payload[offset : offset + CHUNK_BYTES])


def _activation_spec(plan: LinkPlan, hidden_TH: torch.Tensor) -> stage_pb2.ActivationSpec:
    begin, end = plan.hidden_interval
    return stage_pb2.ActivationSpec(
        dtype=plan.dtype, num_tokens=hidden_TH.shape[0], hidden_begin=begin, hidden_end=end
    )


def _bytes_of(hidden_TH: torch.Tensor) -> memoryview:
    """The tensor's memory as bytes, row-major, without a copy."""
    return hidden_TH.view(torch.uint8).numpy().reshape(-1).data
