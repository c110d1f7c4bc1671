"""A stalled stage: how many steps wait before it, and that all of them arrive later."""

import asyncio
from typing import Any

import grpc.aio
import pytest

from runtime.protocol.step import SequenceChunk, Step
from stage_worker.device.device_thread import DeviceThread, TimedResult
from stage_worker.epoch.epoch_session import _NUM_OUTBOX
from tests.stage_worker.live_workers import (
    PROMPT,
    coordinator_frame,
    live_workers,
    load_pipeline,
    next_result,
    open_pipeline,
    prefill,
)
from tests.tiny_models import TinyModel, make_tiny_llama

WINDOW = 2
NUM_STEPS = 40
# The time without a credit after which all computable steps are computed.
QUIET_SECONDS = 1.0


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_tiny_llama(tmp_path_factory.mktemp("model"), "tied_gqa")


def decode(number: int) -> Step:
    """A decode step of the sequence of `prefill`."""
    position = len(PROMPT) + number - 1
    blocks = (position // 8,) if position % 8 == 0 else ()
    return Step(number, chunks=(SequenceChunk(0, position, (5,), blocks, sample=True),))


def hold_last_stage(monkeypatch: pytest.MonkeyPatch, is_open: asyncio.Event) -> None:
    """Lets the last stage compute only once `is_open` is set."""
    compute = DeviceThread.compute

    async def held(self: DeviceThread, call: Any) -> TimedResult[Any]:
        if call.func.__self__._stage.spec.is_last:
            await is_open.wait()
        return await compute(self, call)

    monkeypatch.setattr(DeviceThread, "compute", held)


async def send_all(stream: Any, epoch: Any, is_open: asyncio.Event) -> int:
    """Sends every step as credits allow; returns how many were sent before credits stopped.

    Sets `is_open` at that point, so that the remaining steps can be sent.
    """
    num_sent = num_credits = num_sent_when_stuck = 0
    while num_sent < NUM_STEPS:
        while num_sent - num_credits < WINDOW and num_sent < NUM_STEPS:
            step = decode(num_sent) if num_sent else prefill()
            await stream.write(coordinator_frame(epoch, step))
            num_sent += 1
        credit = asyncio.ensure_future(stream.read())
        await asyncio.wait((credit,), timeout=None if is_open.is_set() else QUIET_SECONDS)
        if not credit.done():
            is_open.set()
            num_sent_when_stuck = num_sent
        assert await credit is not grpc.aio.EOF
        num_credits += 1
    return num_sent_when_stuck


async def test_stalled_stage_fills_no_queue_beyond_its_bound(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 20 (exo#1726): backpressure, and no step is dropped."""
    is_open = asyncio.Event()
    async with live_workers(2) as workers:
        await load_pipeline(workers, tiny_model.folder)
        epoch = await open_pipeline(workers, counter=1)
        hold_last_stage(monkeypatch, is_open)
        stream, results = workers[0].forward(), workers[1].results(epoch)
        num_sent = await send_all(stream, epoch, is_open)
        # Stage 0: received and computing steps, the outbox, the step being sent; stage 1: received
        # and computing steps.
        assert 0 < num_sent <= (WINDOW + 1) + _NUM_OUTBOX + 1 + (WINDOW + 1)
        for number in range(NUM_STEPS):
            assert (await next_result(results)).step == number
