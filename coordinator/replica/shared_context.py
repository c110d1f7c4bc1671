"""Holds what the replicas of one coordinator share: the model, the workers and epoch ids."""

import asyncio
import itertools
from dataclasses import dataclass, field

from coordinator.membership.membership import Membership
from coordinator.options import CoordinatorOptions
from coordinator.stage_client.stage_codec import EpochId
from coordinator.tokenization.model_info import ServedModel


@dataclass(slots=True)
class SharedReplicaContext:
    """One object per coordinator; `changed` is set at each change of a replica's phase."""

    coordinator_id: str
    model: ServedModel
    options: CoordinatorOptions
    membership: Membership
    changed: asyncio.Event
    # `ReplicaPlan` replaces `auto` when the first replica forms: with another dtype, requests that
    # move to another replica would get other tokens.
    dtype: str
    # When workers that were waiting for this coordinator have joined, in the event loop's time.
    settled_at: float = 0.0
    # Set by the first `Replica` that serves.
    has_served: bool = False
    # Held while a canary's reference is looked up or recorded, so that it is recorded once.
    recording: asyncio.Lock = field(default_factory=asyncio.Lock)
    _counters: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def new_epoch(self) -> EpochId:
        """An id above all earlier ones of any replica: workers move between replicas."""
        return EpochId(self.coordinator_id, next(self._counters))
