"""Owns what one rank's word about the end of an epoch means: whose failure it is.

A stage that hears of the next one's failure says so in its own words, which begin with where it
heard it: `next stage ADDRESS: `, once for each stage that passed it on.
"""

import re
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

import grpc.aio

from protos import stage_pb2
from runtime.errors import EpochEndedError, LinkBrokenError, StageFailedError, StagemeshError
from runtime.rpc.channels import epoch_error_from_rpc

# The cause of a stage that does not reach the next one, or is not heard by it any more.
_NO_NEXT_STAGE: Final = "next_stage"
_HOP: Final = re.compile(r"next stage (\S+): ")


@dataclass(frozen=True, slots=True)
class RankFailureSource:
    """One rank; `addresses` are those of the workers of its replica, by stage and rank."""

    stage: int
    rank: int
    addresses: tuple[tuple[str, ...], ...]

    @property
    def name(self) -> str:
        """What it is called in what people read."""
        return f"stage {self.stage}, rank {self.rank}" if self.rank else f"stage {self.stage}"

    def from_result(self, failure: stage_pb2.StageFailure) -> StagemeshError:
        """It sent this as the last of its results."""
        detail = f"{self.name} at step {failure.step}: {failure.message}"
        return self._attribute(failure.code, detail, failure.message)

    def from_status(self, error: grpc.aio.AioRpcError) -> StagemeshError:
        """Its stream ended with a status."""
        end = epoch_error_from_rpc(error, self.name)
        return self._attribute(end.cause, end.detail, end.detail.removeprefix(f"{self.name}: "))

    def from_closed(self, what: str) -> StagemeshError:
        """It closed what it had no reason to close."""
        return EpochEndedError(cause="stream_closed", detail=f"{self.name} closed its {what}")

    def from_violation(self, error: StagemeshError) -> StagemeshError:
        """What it sent was refused."""
        return self.from_stage(error.code, str(error))

    def from_stage(self, cause: str, detail: str) -> StagemeshError:
        """It, or another rank of its stage: they agree before they fail."""
        workers = self.addresses[self.stage]
        return StageFailedError(cause=cause, detail=f"{self.name}: {detail}", workers=workers)

    def _attribute(self, cause: str, detail: str, message: str) -> StagemeshError:
        hops = [self.addresses[self.stage][self.rank], *_hops(message)]
        stages = {each: stage for stage, ranks in enumerate(self.addresses) for each in ranks}
        hops = list(takewhile(stages.__contains__, hops))
        if cause == _NO_NEXT_STAGE and len(hops) > 1:
            sender, peer = hops[-2:]
            return LinkBrokenError(worker=sender, peer=peer, detail=detail)
        workers = self.addresses[stages[hops[-1]]]
        return StageFailedError(cause=cause, detail=detail, workers=workers)


def _hops(message: str) -> list[str]:
    """The addresses that a message was passed on from, the nearest first."""
    hops: list[str] = []
    begin = 0
    while hop := _HOP.match(message, begin):
        hops.append(hop[1])
        begin = hop.end()
    return hops
