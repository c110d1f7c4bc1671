"""What policies that learn nothing have in common."""

from scheduler.cost_model.feedback import SentStep, StageRecord
from scheduler.limits import SchedulerLimits
from scheduler.observability.snapshot import PolicySnapshot
from scheduler.policies.interface import SchedulerView


class OpenLoopPolicy:
    """Keeps as many steps in flight as the limits allow, and takes no notice of feedback."""

    name = ""

    def __init__(self) -> None:
        self._num_in_flight = 0

    def start_epoch(self, limits: SchedulerLimits) -> None:
        """Notes the limits, to tell them."""
        self._num_in_flight = limits.num_steps_in_flight

    def num_steps_in_flight(self, view: SchedulerView) -> int:
        """As many as the limits allow."""
        return view.limits.num_steps_in_flight

    def complete(self, sent: SentStep, now: float) -> None:
        """Changes nothing."""

    def observe(self, record: StageRecord, sent: SentStep) -> None:
        """Changes nothing."""

    def snapshot(self) -> PolicySnapshot:
        """Its name and its limits."""
        return PolicySnapshot(policy=self.name, num_steps_in_flight=self._num_in_flight)
