"""Attributes every idle second of a stage to one cause."""

from dataclasses import dataclass

from scheduler.cost_model.feedback import SentStep
from scheduler.observability.snapshot import BubbleSeconds


@dataclass(frozen=True, slots=True)
class IdleGap:
    """A stage's idle time before one step.

    `upstream_seconds` is the step's time in earlier stages, `behind_seconds` the difference in
    compute time to the slowest stage, `exposed_seconds` the part of the previous stage's last
    known send that compute did not hide.
    """

    seconds: float
    upstream_seconds: float
    behind_seconds: float
    exposed_seconds: float


class BubbleLedger:
    """Idle seconds by cause since the epoch began."""

    def __init__(self) -> None:
        self._starved = 0.0
        self._fill = 0.0
        self._imbalance = 0.0
        self._exposed_send = 0.0
        self._coordinator = 0.0

    def add(self, gap: IdleGap, sent: SentStep) -> None:
        """Splits one gap among the causes, in order."""
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
