"""Decides that nothing moves although something should. It reads no clock and mends nothing.

Three things can stand still: steps that were sent and do not come back, a first stage that takes
none, and a scheduler that has work and makes none of it. The last is a fault of ours, and the
one that a check of processes and streams would never see: everything is up, and nobody is served.
"""

from dataclasses import dataclass

NO_PROGRESS = "no_progress"
"""The cause where the scheduler has work, and none of it is on its way."""


@dataclass(frozen=True, slots=True)
class Activity:
    """A replica at one moment; `can_send` says that the first stage takes another step."""

    has_work: bool
    num_running: int
    num_waiting: int
    num_steps_in_flight: int
    can_send: bool


@dataclass(frozen=True, slots=True)
class Alarm:
    """What stands still, as a cause for programs and a detail for people."""

    cause: str
    detail: str


class Watchdog:
    """Counts the time since something moved last, while there is something to move."""

    def __init__(self, step_seconds: float, stall_seconds: float) -> None:
        """How long a result or a credit may take, and how long work may lie with none on its way.

        The second is short: with nothing on its way, only a client could change anything.
        """
        self._step_seconds = step_seconds
        self._stall_seconds = stall_seconds
        self._since: float | None = None

    def moved(self, now: float) -> None:
        """A result came, or a step left when none was on its way."""
        self._since = now

    def seconds_left(self, activity: Activity, now: float) -> float | None:
        """How much longer it may stay like this, at least 0; None: for ever, nothing is to do."""
        if self._is_idle(activity):
            self._since = None
            return None
        if self._since is None:
            self._since = now
        return max(0.0, self._since + self._timeout_seconds(activity) - now)

    def alarm(self, activity: Activity) -> Alarm:
        """What to say when no time is left."""
        seconds = self._timeout_seconds(activity)
        if activity.num_steps_in_flight > 0:
            return Alarm("step_timeout", f"no result within {seconds:g} s")
        if not activity.can_send:
            return Alarm("step_timeout", f"no credit within {seconds:g} s")
        numbers = f"{activity.num_running} sequences run, {activity.num_waiting} wait"
        return Alarm(NO_PROGRESS, f"{numbers}, and no step was made for {seconds:g} s")

    def _is_idle(self, activity: Activity) -> bool:
        return not activity.has_work and activity.num_steps_in_flight == 0 and activity.can_send

    def _timeout_seconds(self, activity: Activity) -> float:
        is_waited_for = activity.num_steps_in_flight > 0 or not activity.can_send
        return self._step_seconds if is_waited_for else self._stall_seconds
