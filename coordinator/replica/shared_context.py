"""Owns what the replicas of one coordinator share: model, workers, unique names."""

import asyncio
import itertools
from dataclasses import dataclass, field

from coordinator.membership.membership import Membership
from coordinator.options import CoordinatorOptions
from coordinator.stage_client.stage_client import EpochId
from coordinator.tokenization.model_info import ServedModel


@dataclass(slots=True)
class SharedReplicaContext:
    """One per coordinator.

    `dtype` is what `auto` came to when the first replica formed: with another, the tokens of
    requests that go on elsewhere would change. `settled_at` is when workers that waited for this
    coordinator have come, in the event loop's time. `has_served` says that some replica has.
    `changed` is set with every change of a replica's phase, `recording` is held while a canary's
    reference is looked for, so that it is computed once.
    """

    coordinator_id: str
    model: ServedModel
    options: CoordinatorOptions
    membership: Membership
    changed: asyncio.Event
    dtype: str
    settled_at: float = 0.0
    has_served: bool = False
    recording: asyncio.Lock = field(default_factory=asyncio.Lock)
    _counters: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def new_epoch(self) -> EpochId:
        """A name later than all before: a worker may come from another replica."""
        return EpochId(self.coordinator_id, next(self._counters))
