"""What a failed call to a worker says of it, and of those that it had to reach."""

import grpc
import grpc.aio
import pytest

from coordinator.stage_client.stage_errors import opening_error
from runtime.errors import (
    LinkBrokenError,
    NextStageError,
    StagemeshError,
    WorkerDiedError,
    WorkerRefusedError,
)
from runtime.rpc.error_details import DETAILS_KEY, error_status, short_message

LONG_HOST = "a-host-with-a-name-of-more-than-sixty-characters.in.a.long.domain"


def call_error(code: grpc.StatusCode, error: StagemeshError) -> grpc.aio.AioRpcError:
    """The end of a call by `error`, as the caller sees it."""
    message = short_message(error)
    trailer = grpc.aio.Metadata((DETAILS_KEY, error_status(error, message)))
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailer, message)


@pytest.mark.parametrize(
    ("unreached", "others"),
    [
        ("10.0.0.2:5010", ("10.0.0.2:50100", "10.0.0.2:50101")),
        (f"{LONG_HOST}:50100", ("10.0.0.2:50100",)),
    ],
    ids=["port-begins-alike", "cut"],
)
def test_opening_that_does_not_reach_a_peer_names_that_one(
    unreached: str, others: tuple[str, ...]
) -> None:
    detail = f"next stage {unreached}: no answer within 5 s"
    cause = NextStageError(cause="next_stage", detail=detail, address=unreached)
    error = opening_error(
        call_error(grpc.StatusCode.UNAVAILABLE, cause), "w0", (*others, unreached)
    )
    assert isinstance(error, LinkBrokenError)
    assert (error.worker, error.peer, error.detail) == ("w0", unreached, "no answer within 5 s")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (grpc.StatusCode.UNAVAILABLE, WorkerDiedError),
        (grpc.StatusCode.INVALID_ARGUMENT, WorkerRefusedError),
    ],
)
def test_opening_that_names_no_peer_speaks_of_the_worker_alone(
    code: grpc.StatusCode, expected: type[StagemeshError]
) -> None:
    error = opening_error(call_error(code, StagemeshError()), "w0", ("10.0.0.2:50100",))
    assert type(error) is expected
