"""Drives one scheduler over the streams of one epoch: results in, steps out.

The caller repeats `take_results`, `schedule` and `send`, `wait`. The loop knows neither clients nor
workers, so that the canary and the requests run through the same code.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import NamedTuple

from coordinator.stage_client.epoch_streams import EpochStreams
from runtime.protocol.step import Step
from scheduler import Activity, Scheduler, ScoreEvent, TokenEvent, Watchdog

Clock = Callable[[], float]


class StepEvents(NamedTuple):
    """What one step's result means for its sequences, at `now` in the clock's seconds."""

    now: float
    scored: tuple[ScoreEvent, ...]
    tokens: tuple[TokenEvent, ...]


class StepLoop:
    """The parts of one iteration; `run_until_idle` puts them together for a single caller."""

    def __init__(
        self,
        scheduler: Scheduler,
        streams: EpochStreams,
        wake: asyncio.Event,
        watchdog: Watchdog,
        clock: Clock,
    ) -> None:
        """`wake` is set by the streams and by every change of the scheduler's work."""
        self._scheduler = scheduler
        self._streams = streams
        self._wake = wake
        self._watchdog = watchdog
        self._clock = clock

    async def run_until_idle(self) -> list[TokenEvent]:
        """Runs all work of the scheduler; returns the tokens, once every step has come back."""
        tokens: list[TokenEvent] = []
        while True:
            for events in self.take_results():
                tokens += events.tokens
            while (step := self.schedule(self._clock())) is not None:
                await self.send(step)
            if not self._scheduler.has_work:
                return tokens
            await self.wait()

    def take_results(self) -> Iterator[StepEvents]:
        """Applies the results that have arrived, oldest first, each when it is iterated.

        Stage timings come first, so that the policy knows them when it learns of the step's end.
        """
        self._wake.clear()
        for record in self._streams.take_records():
            self._scheduler.observe(record)
        for result in self._streams.take_results():
            now = self._clock()
            self._watchdog.moved(now)
            scored = self._scheduler.score(result.step, result.scored)
            yield StepEvents(now, scored, self._scheduler.update(result.step, result.sampled, now))

    def schedule(self, now: float) -> Step | None:
        """Makes a step, which must be sent; None if stage 0 takes none or there is no work."""
        if not self._streams.can_send:
            return None
        step = self._scheduler.schedule(now)
        if step is not None and self._scheduler.num_steps_in_flight == 1:
            self._watchdog.moved(now)
        return step

    async def send(self, step: Step) -> None:
        """Sends a step that `schedule` made."""
        await self._streams.send(step)

    async def wait(self) -> None:
        """Waits for results, credits or work; raises the watchdog's alarm as the epoch's end."""
        activity = self._activity()
        left = self._watchdog.seconds_left(activity, self._clock())
        try:
            async with asyncio.timeout(left):
                await self._wake.wait()
        except TimeoutError:
            alarm = self._watchdog.alarm(activity)
            raise self._streams.stalled(alarm.cause, alarm.detail) from None

    def _activity(self) -> Activity:
        scheduler = self._scheduler
        return Activity(
            has_work=scheduler.has_work,
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting,
            num_steps_in_flight=scheduler.num_steps_in_flight,
            can_send=self._streams.can_send,
        )
