"""Keeps the account of idle stages: every second that a stage waited is put down to one cause."""

from dataclasses import dataclass

from scheduler.cost_model.feedback import SentStep
from scheduler.observability.snapshot import BubbleSeconds


@dataclass(frozen=True, slots=True)
class IdleGap:
    """A stage's wait before one step.

    `upstream_seconds` is how long the step was in the stages before, `behind_seconds` how much
    less this stage computes than the slowest one, `exposed_seconds` what the last known send of
    the stage before was not hidden behind compute.
    """

    seconds: float
    upstream_seconds: float
    behind_seconds: float
    exposed_seconds: float


class BubbleLedger:
    """Sums by cause since the epoch began."""

    def __init__(self) -> None:
        self._starved = 0.0
        self._fill = 0.0
        self._imbalance = 0.0
        self._exposed_send = 0.0
        self._coordinator = 0.0

    def add(self, gap: IdleGap, sent: SentStep) -> None:
        """Puts one gap down, cause by cause until nothing of it is left."""
        if sent.num_others == 0:
            fill = min(gap.seconds, gap.upstream_seconds)
            self._fill += fill
            self._starved += gap.seconds - fill
            return
        imbalance = min(gap.seconds, max(0.0, gap.behind_seconds))
        left = gap.seconds - imbalance
        exposed = min(left, max(0.0, gap.exposed_seconds))
        self._imbalance += imbalance
        self._exposed_send += exposed
        if sent.is_full:
            self._coordinator += left - exposed
        else:
            self._starved += left - exposed

    def snapshot(self) -> BubbleSeconds:
        """The sums so far."""
        return BubbleSeconds(
            starved=self._starved,
            fill=self._fill,
            imbalance=self._imbalance,
            exposed_send=self._exposed_send,
            coordinator=self._coordinator,
        )
