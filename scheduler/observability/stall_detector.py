"""Detects a stalled replica. It reads no clock and repairs nothing.

Three things can stall: sent steps without a result, a first stage that grants no credit, and a
scheduler that has work but makes no step. The last is a bug of the scheduler that no check of
processes and streams detects: all of them are up, and no request makes progress.
"""

from dataclasses import dataclass

NO_PROGRESS = "no_progress"
"""The cause if the scheduler has work and no step is in flight."""


@dataclass(frozen=True, slots=True)
class Activity:
    """A replica's activity at one moment; `can_send` is set if the first stage has a credit."""

    has_work: bool
    num_running: int
    num_waiting: int
    num_steps_in_flight: int
    can_send: bool


@dataclass(frozen=True, slots=True)
class Alarm:
    """A stall, with a cause for programs and a detail for people."""

    cause: str
    detail: str


class Watchdog:
    """Measures the time since the last progress, while there is work."""

    def __init__(self, step_seconds: float, stall_seconds: float) -> None:
        """Sets the timeouts of a result or credit, and of work without a step in flight.

        The second is short: without a step in flight, only a client can change the state.
        """
        self._step_seconds = step_seconds
        self._stall_seconds = stall_seconds
        self._since: float | None = None

    def moved(self, now: float) -> None:
        """Records progress: a result, or a step sent when none was in flight."""
        self._since = now

    def seconds_left(self, activity: Activity, now: float) -> float | None:
        """Seconds until the alarm, at least 0; None if there is nothing to do."""
        if self._is_idle(activity):
            self._since = None
            return None
        if self._since is None:
            self._since = now
        return max(0.0, self._since + self._timeout_seconds(activity) - now)

    def alarm(self, activity: Activity) -> Alarm:
        """The alarm to raise when no time is left."""
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
