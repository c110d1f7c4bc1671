"""What one rank's epoch takes, step by step for `Results` and in sum for heartbeats and metrics.

Times are taken elsewhere, by those who do the work.
"""

import math
import time
from collections import deque
from collections.abc import Callable

from runtime.protocol.step import RankActivity, SendTiming, StageTiming
from stage_worker.collectives.group import RankGroup
from stage_worker.device.device_thread import DeviceThread, TimedResult
from stage_worker.transport.receiver import ReceivedStep
from stage_worker.transport.stage_sender import SentStep

ActivityListener = Callable[[RankActivity], None]


def ignore_activity(_: RankActivity) -> None:
    """For those who do not want to know."""


class EpochTiming:
    """One epoch's; `count` is told what is added to `total`."""

    def __init__(self, device: DeviceThread, group: RankGroup, count: ActivityListener) -> None:
        self.total = RankActivity()
        self._device = device
        self._group = group
        self._count = count
        self._idle_since = math.inf
        self._waited_seconds = 0.0
        # Every result takes one away and every step adds one, so it holds no more than are in
        # flight between the two.
        self._unreported_sends: deque[SendTiming] = deque()

    def start(self) -> None:
        """From now on the device is idle while it computes no step."""
        self._idle_since = time.monotonic()

    def computed(self, received: ReceivedStep, computed: TimedResult[object]) -> StageTiming:
        """The record of a step that was just computed."""
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

    def sent(self, step: int, ready_at: float, sent: SentStep) -> None:
        """A step was sent whose output was ready at `ready_at`, in `time.monotonic` seconds."""
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
        self._count(activity)
