"""One stage's results as they come off the wire, message by message."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, cast

import pytest

from coordinator.epoch import EpochStreams
from coordinator.stages import EpochId, EpochPlan
from protos import stage_pb2
from runtime.errors import EpochEndedError, FrameError, StagemeshError
from runtime.step import StageTiming, Step, StepResult

VOCAB_SIZE = 97
PLAN = EpochPlan(
    EpochId("coordinator", 1),
    replica=0,
    num_kv_blocks=8,
    max_sequences=2,
    max_step_tokens=32,
    window=2,
)


def message(step: int, *slots: int, more: bool = False) -> stage_pb2.StepResult:
    """Tokens for these slots."""
    sampled = [stage_pb2.SampledToken(slot=slot, token_id=slot) for slot in slots]
    return stage_pb2.StepResult(step=step, sampled=sampled, more=more)


async def read(
    messages: Iterable[stage_pb2.StepResult], num_sent: int
) -> tuple[list[StepResult], int, StagemeshError]:
    """The last stage's results, how many timings were recorded, and how it ended."""

    async def stream() -> AsyncIterator[stage_pb2.StepResult]:
        for each in messages:
            yield each

    timings: list[StageTiming] = []
    streams = EpochStreams(PLAN, [], 1.0, asyncio.Event())
    for number in range(num_sent):
        await streams.send(Step(number))
    with pytest.raises(StagemeshError) as caught:
        await streams.read_results(
            0, cast("Any", stream()), lambda _, timing: timings.append(timing), VOCAB_SIZE
        )
    return streams.take_results(), len(timings), caught.value


async def test_read_results_step_in_several_messages_is_one_result() -> None:
    messages = [message(0, 3, more=True), message(0, 5), message(1, 3)]

    results, num_timings, end = await read(messages, num_sent=2)

    slots = [[token.slot for token in result.sampled] for result in results]
    assert slots == [[3, 5], [3]]
    assert num_timings == 2
    assert isinstance(end, EpochEndedError)


async def test_read_results_more_tokens_than_sequences_is_refused() -> None:
    endless = [message(0, 1, more=True)] * 10

    results, _, end = await read(endless, num_sent=1)

    assert results == []
    assert isinstance(end, FrameError)
