"""Errors of calls and streams: the worker or link that they name, and which one is the cause."""

import asyncio

import grpc
import grpc.aio
import pytest

from coordinator.stage_client.failures import (
    RankFailureSource,
    call_error,
    is_secondary,
    raise_after_grace,
    run_to_failure,
)
from protos import stage_pb2
from runtime.errors import (
    EpochEndedError,
    LinkBrokenError,
    NextStageError,
    SlotError,
    StageFailedError,
    StagemeshError,
    WorkerDiedError,
    WorkerFailedError,
    WorkerRefusedError,
)
from runtime.rpc.error_details import DETAILS_KEY, error_status, short_message

SECONDARY = EpochEndedError(cause="sender_gone", detail="sender 0 closed its stream")
PRIMARY = EpochEndedError(cause="position", detail="slot 3: expected position 1, got 2")
LONG_HOST = "a-host-with-a-name-of-more-than-sixty-characters.in.a.long.domain"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (SECONDARY, True),
        (LinkBrokenError(worker="w0", peer="w1", detail=""), True),
        (StageFailedError(cause="unavailable", detail="", workers=("w0",)), True),
        (StageFailedError(cause="position", detail="", workers=("w0",)), False),
        (PRIMARY, False),
        (WorkerDiedError(worker="w0", detail=""), False),
    ],
)
def test_is_secondary_for_errors_that_only_report_a_lost_peer(
    error: StagemeshError, expected: bool
) -> None:
    assert is_secondary(error) is expected


async def test_run_to_failure_secondary_error_first_returns_the_primary_one() -> None:
    async def epoch() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(raise_after_grace(SECONDARY))
            await asyncio.sleep(0)
            tasks.create_task(raise_after_grace(PRIMARY))

    assert await run_to_failure(epoch()) is PRIMARY


@pytest.mark.parametrize(
    ("secondary", "primary"),
    [
        (SECONDARY, PRIMARY),
        (SECONDARY, SlotError(slot=1, problem="is open")),
        (
            EpochEndedError(cause="collective_timeout", detail="rank 0 waited 30 s for rank 1"),
            WorkerDiedError(worker="w1", detail="its stream broke"),
        ),
    ],
)
async def test_run_to_failure_group_returns_the_primary_error(
    secondary: StagemeshError, primary: StagemeshError
) -> None:
    async def epoch() -> None:
        raise ExceptionGroup("at once", [secondary, primary])

    assert await run_to_failure(epoch()) is primary


async def test_run_to_failure_secondary_error_alone_is_returned() -> None:
    assert await run_to_failure(raise_after_grace(SECONDARY)) is SECONDARY


def rpc_error(code: grpc.StatusCode, error: StagemeshError) -> grpc.aio.AioRpcError:
    """The status with which a call ends because of `error`."""
    message = short_message(error)
    trailer = grpc.aio.Metadata((DETAILS_KEY, error_status(error, message)))
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailer, message)


@pytest.mark.parametrize(
    ("unreached", "others"),
    [
        ("10.0.0.2:5010", ("10.0.0.2:50100", "10.0.0.2:50101")),
        (f"{LONG_HOST}:50100", ("10.0.0.2:50100",)),
    ],
    ids=["port-prefix", "cut"],
)
def test_call_error_of_an_opening_names_the_peer_that_was_not_reached(
    unreached: str, others: tuple[str, ...]
) -> None:
    detail = f"next stage {unreached}: no answer within 5 s"
    cause = NextStageError(cause="next_stage", detail=detail, address=unreached)
    error = call_error(rpc_error(grpc.StatusCode.UNAVAILABLE, cause), "w0", (*others, unreached))
    assert isinstance(error, LinkBrokenError)
    assert (error.worker, error.peer, error.detail) == ("w0", unreached, "no answer within 5 s")


@pytest.mark.parametrize("peers", [(), ("10.0.0.2:50100",)], ids=["call", "opening"])
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (grpc.StatusCode.UNAVAILABLE, WorkerDiedError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, WorkerDiedError),
        (grpc.StatusCode.INTERNAL, WorkerFailedError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, WorkerFailedError),
        (grpc.StatusCode.INVALID_ARGUMENT, WorkerRefusedError),
        (grpc.StatusCode.FAILED_PRECONDITION, WorkerRefusedError),
    ],
)
def test_call_error_without_a_peer_follows_from_the_status(
    code: grpc.StatusCode, expected: type[StagemeshError], peers: tuple[str, ...]
) -> None:
    assert type(call_error(rpc_error(code, StagemeshError()), "w0", peers)) is expected


ADDRESSES = (("a:1", "a:2"), ("b:1",), ("c:1",))


@pytest.mark.parametrize(
    ("code", "message", "workers", "link"),
    [
        ("position", "slot 3", ("a:1", "a:2"), None),
        ("position", "next stage b:1: slot 3", ("b:1",), None),
        ("position", "next stage b:1: next stage c:1: slot 3", ("c:1",), None),
        ("position", "next stage x:1: slot 3", ("a:1", "a:2"), None),
        ("next_stage", "next stage b:1: no answer", (), ("a:1", "b:1")),
        ("next_stage", "next stage b:1: next stage c:1: no answer", (), ("b:1", "c:1")),
        ("next_stage", "the stream broke", ("a:1", "a:2"), None),
    ],
)
def test_failure_source_follows_the_hops_of_a_message_to_the_stage_or_link_at_fault(
    code: str, message: str, workers: tuple[str, ...], link: tuple[str, str] | None
) -> None:
    source = RankFailureSource(0, 0, ADDRESSES)
    failure = stage_pb2.StageFailure(code=code, message=message, step=7)
    error = source.from_result(failure)
    assert f"stage 0 at step 7: {message}" in str(error)
    if link is None:
        assert isinstance(error, StageFailedError)
        assert (error.cause, error.workers) == (code, workers)
    else:
        assert isinstance(error, LinkBrokenError)
        assert (error.worker, error.peer) == link


def test_failure_source_violation_is_a_failure_of_all_ranks_of_the_stage() -> None:
    error = RankFailureSource(0, 1, ADDRESSES).from_violation(SlotError(slot=1, problem="is open"))
    assert isinstance(error, StageFailedError)
    assert error.workers == ("a:1", "a:2")
    assert error.detail.startswith("stage 0, rank 1: ")
