"""Times of one rank's epoch: per step for `Results`, in total for heartbeats and metrics.

The device's thread, the receiver and the senders measure; this module combines.
"""

import math
import time
from collections import deque
from collections.abc import Callable

from runtime.protocol.step import RankActivity, SendTiming, StageTiming
from stage_worker.collectives.group import RankGroup
from stage_worker.device.device_thread import DeviceThread, TimedResult
from stage_worker.transport.receiver import ReceivedStep
from stage_worker.transport.stage_sender import SendResult

ActivityListener = Callable[[RankActivity], None]


def ignore_activity(_: RankActivity) -> None:
    """An `ActivityListener` that does nothing."""


class EpochTiming:
    """The times of one epoch; `on_activity` is called with each addition to `total`."""

    def __init__(
        self, device: DeviceThread, group: RankGroup, on_activity: ActivityListener
    ) -> None:
        self.total = RankActivity()
        self._device = device
        self._group = group
        self._on_activity = on_activity
        self._idle_since = math.inf
        self._waited_seconds = 0.0
        # Every result removes an entry and every send adds one, so the length is bounded by the
        # steps in flight.
        self._unreported_sends: deque[SendTiming] = deque()

    def start(self) -> None:
        """Starts the measurement of idle time."""
        self._idle_since = time.monotonic()

    def computed(self, received: ReceivedStep, computed: TimedResult[object]) -> StageTiming:
        """Adds a computed step and returns its timing."""
        sends, waited_seconds = self._unreported_sends, self._group.waited_seconds
        timing = StageTiming(
            receive_seconds=received.complete_at - received.begun_at,
            queue_seconds=computed.begun_at - received.complete_at,
            compute_seconds=computed.ended_at - computed.begun_at,
            idle_seconds=computed.begun_at - self._idle_since,
            send=sends.popleft() if sends else None,
        )
        self._idle_since = computed.ended_at
        self._add(RankActivity(1, timing.compute_seconds, waited_seconds - self._waited_seconds))
        self._waited_seconds = waited_seconds
        return timing

    def sent(self, step: int, ready_at: float, sent: SendResult) -> None:
        """Adds a sent step whose output was ready at `ready_at`, in `time.monotonic` seconds."""
        self._unreported_sends.append(
            SendTiming(
                step=step,
                seconds=sent.ended_at - ready_at,
                hidden_seconds=self._device.busy_seconds(ready_at, sent.ended_at),
                num_frames=sent.num_frames,
                num_bytes=sent.num_bytes,
            )
        )
        self._add(RankActivity(num_bytes_sent=sent.num_bytes))

    def _add(self, activity: RankActivity) -> None:
        self.total += activity
        self._on_activity(activity)
