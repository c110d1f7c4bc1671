"""Translates failures of calls and streams to errors that name the worker or link at fault.

One failure ends every stream of an epoch, and secondary errors, which only report that a peer is
gone, may arrive before the primary one. They are raised after a grace time, in which the primary
error ends the epoch.
"""

import asyncio
import re
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final, Never

import grpc
import grpc.aio

from protos import stage_pb2
from runtime.errors import (
    EpochEndedError,
    LinkBrokenError,
    StageFailedError,
    StagemeshError,
    WorkerDiedError,
    WorkerFailedError,
    WorkerRefusedError,
    find_errors,
)
from runtime.host.tasks import run_in_child_task
from runtime.rpc.channels import details_from_rpc, epoch_error_from_rpc, error_from_rpc
from runtime.rpc.error_details import error_metadata

GRACE_SECONDS: Final = 0.25
# Causes that only report that the peer is gone.
_SECONDARY_CAUSES: Final = frozenset(
    {
        "cancelled",
        "closed",
        "collective",
        "collective_timeout",
        "epoch_ended",
        "next_stage",
        "no_epoch",
        "results_gone",
        "sender_gone",
        "stream_closed",
        "unavailable",
    }
)
# The cause of a stage that does not reach the next one, or that the next one no longer hears.
_NO_NEXT_STAGE: Final = "next_stage"
# A stage that forwards the next one's failure prepends the address that it received it from.
_HOP: Final = re.compile(r"next stage (\S+): ")
# Statuses that do not depend on the request: the same call may succeed on the next attempt.
_TRANSIENT: Final = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.ABORTED,
)
# Statuses of a worker that failed, but that may succeed on another attempt.
_FAILURES: Final = (
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)


def is_secondary(error: StagemeshError) -> bool:
    """Whether the error only reports that a peer is gone."""
    # The peer may have died, which is not known yet.
    if isinstance(error, LinkBrokenError):
        return True
    return isinstance(error, EpochEndedError) and error.cause in _SECONDARY_CAUSES


async def raise_after_grace(error: StagemeshError) -> Never:
    """Raises `error`; a secondary one only after the grace time."""
    if is_secondary(error):
        await asyncio.sleep(GRACE_SECONDS)
    raise error


async def run_to_failure(epoch: Coroutine[Any, Any, None]) -> StagemeshError:
    """Runs an epoch, which always ends with an error, and returns the primary one."""
    try:
        await run_in_child_task(epoch)
    except Exception as error:
        causes = list(find_errors(error))
        if not causes:
            raise
        return next((cause for cause in causes if not is_secondary(cause)), causes[0])
    raise AssertionError("an epoch ends with an error only")


def call_error(
    error: grpc.aio.AioRpcError, worker: str, peers: Sequence[str] = ()
) -> StagemeshError:
    """The meaning of a failed call to `worker`, which had to reach the addresses `peers`.

    `LinkBrokenError` if it did not reach one of them, `WorkerDiedError` if the call may succeed
    on the next attempt, `WorkerFailedError` for an internal error, else `WorkerRefusedError`.
    """
    _, message = error_from_rpc(error)
    # Long addresses are cut; if one port is the prefix of another, the shorter one matches.
    address = error_metadata(details_from_rpc(error)).get("address")
    for peer in sorted(peers, key=len):
        if address and peer.startswith(address):
            detail = message.rpartition(f"{peer}: ")[2]
            return LinkBrokenError(worker=worker, peer=peer, detail=detail)
    if error.code() in _TRANSIENT:
        return WorkerDiedError(worker=worker, detail=message)
    if error.code() in _FAILURES:
        return WorkerFailedError(worker=worker, reason=message)
    return WorkerRefusedError(worker=worker, reason=message)


@dataclass(frozen=True, slots=True)
class RankFailureSource:
    """One rank whose streams end; makes the errors that name the stage or link at fault.

    `addresses` are those of all workers of its replica, by stage and rank.
    """

    stage: int
    rank: int
    addresses: tuple[tuple[str, ...], ...]

    @property
    def name(self) -> str:
        """The stage and rank, for messages."""
        return f"stage {self.stage}, rank {self.rank}" if self.rank else f"stage {self.stage}"

    def from_result(self, failure: stage_pb2.StageFailure) -> StagemeshError:
        """The error for a failure sent as the last result."""
        detail = f"{self.name} at step {failure.step}: {failure.message}"
        return self._attribute(failure.code, detail, failure.message)

    def from_status(self, error: grpc.aio.AioRpcError) -> StagemeshError:
        """The error for a stream that ended with a status."""
        end = epoch_error_from_rpc(error, self.name)
        return self._attribute(end.cause, end.detail, end.detail.removeprefix(f"{self.name}: "))

    def from_close(self, stream: str) -> StagemeshError:
        """The error for a stream closed without a reason."""
        return EpochEndedError(cause="stream_closed", detail=f"{self.name} closed its {stream}")

    def from_violation(self, error: StagemeshError) -> StagemeshError:
        """The error for a message that was refused."""
        return self.stage_failure(error.code, str(error))

    def stage_failure(self, cause: str, detail: str) -> StagemeshError:
        """A failure of all ranks of the stage: they agree before they report one."""
        workers = self.addresses[self.stage]
        return StageFailedError(cause=cause, detail=f"{self.name}: {detail}", workers=workers)

    def _attribute(self, cause: str, detail: str, message: str) -> StagemeshError:
        """Follows the hops in `message` to the stage where the failure began."""
        hops = [self.addresses[self.stage][self.rank], *_hops(message)]
        stages = {each: stage for stage, ranks in enumerate(self.addresses) for each in ranks}
        hops = list(takewhile(stages.__contains__, hops))
        if cause == _NO_NEXT_STAGE and len(hops) > 1:
            sender, peer = hops[-2:]
            return LinkBrokenError(worker=sender, peer=peer, detail=detail)
        workers = self.addresses[stages[hops[-1]]]
        return StageFailedError(cause=cause, detail=detail, workers=workers)


def _hops(message: str) -> list[str]:
    """The addresses that forwarded a message, the nearest first."""
    hops: list[str] = []
    begin = 0
    while hop := _HOP.match(message, begin):
        hops.append(hop[1])
        begin = hop.end()
    return hops
