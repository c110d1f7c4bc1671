"""What an epoch's end is blamed on when several errors come close together."""

import asyncio

import pytest

from coordinator.stage_client.root_cause import raise_after_grace, run_to_failure
from runtime.errors import EpochEndedError, SlotError, StagemeshError, WorkerDiedError

ECHO = EpochEndedError(cause="sender_gone", detail="sender 0 closed its stream")
CULPRIT = EpochEndedError(cause="position", detail="slot 3: expected position 1, got 2")


async def test_end_of_an_echo_before_the_culprit_is_the_culprits() -> None:
    async def epoch() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(raise_after_grace(ECHO))
            await asyncio.sleep(0)
            tasks.create_task(raise_after_grace(CULPRIT))

    assert await run_to_failure(epoch()) is CULPRIT


@pytest.mark.parametrize("culprit", [CULPRIT, SlotError(slot=1, problem="is open")])
async def test_end_of_a_group_prefers_what_says_more(culprit: StagemeshError) -> None:
    async def epoch() -> None:
        raise ExceptionGroup("at once", [ECHO, culprit])

    assert await run_to_failure(epoch()) is culprit


async def test_end_of_an_echo_alone_is_the_echo() -> None:
    assert await run_to_failure(raise_after_grace(ECHO)) is ECHO


async def test_end_of_a_rank_that_waited_in_vain_is_that_of_the_one_that_was_missing() -> None:
    waited = EpochEndedError(cause="collective_timeout", detail="rank 0 waited 30 s for rank 1")
    departed = WorkerDiedError(worker="w1", detail="its stream broke")

    async def epoch() -> None:
        raise ExceptionGroup("at once", [waited, departed])

    assert await run_to_failure(epoch()) is departed
