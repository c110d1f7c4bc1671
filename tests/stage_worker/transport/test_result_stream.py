"""The result stream: buffered from the start, bounded, one reader, failure at the end."""

import asyncio

import pytest

from protos import stage_pb2
from runtime.errors import InvalidRequestError, StepGapError
from runtime.protocol.step import StepResult
from stage_worker.transport import result_stream
from stage_worker.transport.result_stream import ResultStream

EPOCH = stage_pb2.EpochId(coordinator_id="coordinator", counter=1)


async def test_messages_late_reader_gets_all_results_and_the_failure() -> None:
    log = ResultStream(EPOCH)
    await log.put(StepResult(0))
    await log.put(StepResult(1))
    log.close(StepGapError(expected=2, actual=4), step=2)

    messages = [message async for message in log.messages()]

    assert [message.step for message in messages] == [0, 1, 2]
    assert messages[-1].failure == stage_pb2.StageFailure(
        code="step_gap", message="expected step 2, got step 4", step=2
    )
    assert log.reader_gone.is_set()


async def test_messages_clean_end_has_no_failure() -> None:
    log = ResultStream(EPOCH)
    log.close(None, step=0)

    assert [message async for message in log.messages()] == []


async def test_put_full_log_waits_for_the_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_stream, "_NUM_BUFFERED", 1)
    log = ResultStream(EPOCH)
    await log.put(StepResult(0))
    second = asyncio.create_task(log.put(StepResult(1)))
    await asyncio.sleep(0)
    assert not second.done()

    messages = log.messages()
    assert (await anext(messages)).step == 0
    assert (await anext(messages)).step == 1
    await second
    await messages.aclose()


async def test_close_full_log_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_stream, "_NUM_BUFFERED", 1)
    log = ResultStream(EPOCH)
    await log.put(StepResult(0))

    log.close(None, step=1)

    assert [message.step async for message in log.messages()] == [0]


async def test_messages_second_reader_is_refused() -> None:
    log = ResultStream(EPOCH)
    log.close(None, step=0)
    assert [message async for message in log.messages()] == []

    with pytest.raises(InvalidRequestError, match="Results stream already"):
        await anext(log.messages())
