"""Credits of stage 0: one for each step, in the order of sending."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from coordinator.stage_client.epoch_streams import EpochStreams
from coordinator.stage_client.stage_codec import EpochId, EpochPlan
from protos import stage_pb2
from runtime.errors import FrameError, StageFailedError, StagemeshError, WindowExceededError
from runtime.protocol.step import Step

PLAN = EpochPlan(
    EpochId("coordinator", 1),
    replica=0,
    num_kv_blocks=8,
    max_sequences=2,
    max_step_tokens=32,
    window=2,
    backend="auto",
    collective_timeout_seconds=30.0,
    overlap="auto",
)


class Forward:
    """A stream to stage 0 that accepts every step and returns these credits."""

    def __init__(self, *credits: int) -> None:
        self._credits = credits

    async def write(self, frame: stage_pb2.Frame) -> None:
        """Accepts a frame."""

    async def __aiter__(self) -> AsyncIterator[stage_pb2.Credit]:
        for step in self._credits:
            yield stage_pb2.Credit(step=step)


@pytest.mark.parametrize(
    ("credits", "error"), [((0, 1), WindowExceededError), ((1,), FrameError), ((0, 0), FrameError)]
)
async def test_read_credits_out_of_order_fail_stage_0(
    credits: tuple[int, ...], error: type[StagemeshError]
) -> None:
    streams = EpochStreams(PLAN, [cast("Any", Forward(*credits))], 1.0, asyncio.Event(), (("w0",),))
    await streams.send(Step(0))
    if error is FrameError:
        await streams.send(Step(1))
    with pytest.raises(StageFailedError) as raised:
        await streams.read_credits(0)
    assert (raised.value.cause, raised.value.workers) == (error.code, ("w0",))
