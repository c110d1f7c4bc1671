"""Owns the states in a replica's life and which may follow which."""

from enum import Enum


class Phase(Enum):
    """Where a replica is; the value is what people read."""

    WAITING = "waiting for workers"
    LOADING = "loading weights"
    OPENING = "opening the epoch"
    CANARY = "checking the canary prompt"
    SERVING = "serving"
    ENDED = "the epoch ended"
    FAILED = "failed"


NEXT_PHASES: dict[Phase, frozenset[Phase]] = {
    Phase.WAITING: frozenset({Phase.LOADING}),
    Phase.LOADING: frozenset({Phase.OPENING, Phase.ENDED, Phase.FAILED}),
    Phase.OPENING: frozenset({Phase.CANARY, Phase.ENDED, Phase.FAILED}),
    Phase.CANARY: frozenset({Phase.SERVING, Phase.ENDED, Phase.FAILED}),
    Phase.SERVING: frozenset({Phase.ENDED}),
    Phase.ENDED: frozenset({Phase.WAITING}),
    Phase.FAILED: frozenset(),
}
