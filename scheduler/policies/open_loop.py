"""The common part of policies without feedback."""

from scheduler.cost_model.feedback import SentStep, StageRecord
from scheduler.limits import SchedulerLimits
from scheduler.observability.snapshot import PolicySnapshot
from scheduler.policies.interface import SchedulerView


class OpenLoopPolicy:
    """Keeps the maximum number of steps in flight and ignores feedback."""

    name = ""

    def __init__(self) -> None:
        self._num_in_flight = 0

    def start_epoch(self, limits: SchedulerLimits) -> None:
        """Stores the limit for `snapshot`."""
        self._num_in_flight = limits.num_steps_in_flight

    def num_steps_in_flight(self, view: SchedulerView) -> int:
        """The maximum of the limits."""
        return view.limits.num_steps_in_flight

    def complete(self, sent: SentStep, now: float) -> None:
        """Does nothing."""

    def observe(self, record: StageRecord, sent: SentStep) -> None:
        """Does nothing."""

    def snapshot(self) -> PolicySnapshot:
        """The policy's name and limit."""
        return PolicySnapshot(policy=self.name, num_steps_in_flight=self._num_in_flight)
