"""Checks the integrity of every scheduler that a test creates, at the end of the test."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from scheduler import Policy, Scheduler, SchedulerLimits


@contextmanager
def checked_schedulers() -> Iterator[None]:
    """At the end, asserts the invariants of all schedulers that were created in the block.

    None of their blocks and slots is lost, taken twice or held by nobody.
    """
    made: list[Scheduler] = []
    make = Scheduler.__init__

    def note(
        scheduler: Scheduler, limits: SchedulerLimits, policy: Policy, first_step: int = 0
    ) -> None:
        make(scheduler, limits, policy, first_step)
        made.append(scheduler)

    with mock.patch.object(Scheduler, "__init__", note):
        yield
    for scheduler in made:
        scheduler.check_integrity()
