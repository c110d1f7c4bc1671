"""Owns the beat of a replica: results in, decisions by the scheduler, steps out; woken by events.

It knows neither clients nor workers, so that the canary and the requests run through the same loop.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from coordinator.stage_client.epoch_streams import EpochStreams
from runtime.protocol.step import Step
from scheduler import Activity, Scheduler, ScoreEvent, TokenEvent, Watchdog

Clock = Callable[[], float]


class StepListener(Protocol):
    """Whoever wants to know what the loop does; it is called in the loop and must not wait."""

    def on_step(self, step: Step, now: float) -> None:
        """`step` is about to be sent."""

    def on_scored(self, event: ScoreEvent) -> None:
        """Tokens of a sequence's prompt have log-probabilities."""

    def on_token(self, event: TokenEvent, now: float) -> None:
        """A sequence has one more token."""


class StepLoop:
    """Drives one scheduler over the streams of one epoch."""

    def __init__(
        self,
        scheduler: Scheduler,
        streams: EpochStreams,
        wake: asyncio.Event,
        listener: StepListener,
        watchdog: Watchdog,
        clock: Clock,
    ) -> None:
        """`wake` is set by the streams and by whoever changes the scheduler's work."""
        self._scheduler = scheduler
        self._streams = streams
        self._wake = wake
        self._listener = listener
        self._watchdog = watchdog
        self._clock = clock

    async def run(self) -> None:
        """Never returns; raises how the epoch ends when the watchdog finds that nothing moves."""
        while True:
            await self._turn()
            await self._wait()

    async def run_until_idle(self) -> None:
        """Returns when the scheduler has no work and every step has come back."""
        await self._turn()
        while self._scheduler.has_work:
            await self._wait()
            await self._turn()

    async def _turn(self) -> None:
        self._wake.clear()
        self._apply_results()
        await self._send_steps()

    def _apply_results(self) -> None:
        """What stages have measured first: the policy then knows of a step when it is over."""
        for record in self._streams.take_records():
            self._scheduler.observe(record)
        for result in self._streams.take_results():
            now = self._clock()
            self._watchdog.moved(now)
            for scored in self._scheduler.score(result.step, result.scored):
                self._listener.on_scored(scored)
            for event in self._scheduler.update(result.step, result.sampled, now):
                self._listener.on_token(event, now)

    async def _send_steps(self) -> None:
        while self._streams.can_send:
            now = self._clock()
            step = self._scheduler.schedule(now)
            if step is None:
                return
            if self._scheduler.num_steps_in_flight == 1:
                self._watchdog.moved(now)
            self._listener.on_step(step, now)
            await self._streams.send(step)

    async def _wait(self) -> None:
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
