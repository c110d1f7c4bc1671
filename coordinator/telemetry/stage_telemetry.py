"""Sums and exports what one stage reports: step times, sends, and the loading of its ranks.

Rank 0 of a stage measures the step times and sends them with each step's result.
"""

from dataclasses import dataclass

from coordinator.membership.assignment import LoadReport
from runtime.metrics.declarations import CoordinatorMetrics
from runtime.protocol.step import SendTiming, StageTiming


@dataclass(slots=True)
class StageTotals:
    """Sums over an epoch for one stage; the sends are those to the next stage."""

    compute_seconds: float = 0.0
    idle_seconds: float = 0.0
    receive_seconds: float = 0.0
    queue_seconds: float = 0.0
    send_seconds: float = 0.0
    send_hidden_seconds: float = 0.0
    num_frames_sent: int = 0
    num_bytes_sent: int = 0
    num_steps: int = 0

    def add(self, timing: StageTiming) -> None:
        """Adds one step, and the finished send that its timing may carry."""
        self.compute_seconds += timing.compute_seconds
        self.idle_seconds += timing.idle_seconds
        self.receive_seconds += timing.receive_seconds
        self.queue_seconds += timing.queue_seconds
        self.num_steps += 1
        if (send := timing.send) is not None:
            self.send_seconds += send.seconds
            self.send_hidden_seconds += send.hidden_seconds
            self.num_frames_sent += send.num_frames
            self.num_bytes_sent += send.num_bytes


@dataclass(slots=True)
class LoadProgress:
    """Loading progress of one rank, and its memory use once it is loaded."""

    done_bytes: int = 0
    total_bytes: int = 0
    weights_bytes: int = 0
    peak_rss_bytes: int = 0

    def update(self, done_bytes: int, total_bytes: int) -> None:
        """Sets the bytes loaded so far."""
        self.done_bytes, self.total_bytes = done_bytes, total_bytes

    def finish(self, report: LoadReport) -> None:
        """Sets what the rank holds, newly loaded or kept from an earlier assignment."""
        self.update(report.weights_bytes, report.weights_bytes)
        self.weights_bytes, self.peak_rss_bytes = report.weights_bytes, report.peak_rss_bytes


class StageMetrics:
    """Counters of one stage; labels are looked up once because there are many steps.

    A stage that never sends has no link metrics.
    """

    def __init__(self, metrics: CoordinatorMetrics, replica: int, stage: int) -> None:
        self._metrics = metrics
        self._replica = replica
        self._stage = stage
        labels = (str(replica), str(stage))
        self._compute_seconds = metrics.stage_compute_seconds.labels(*labels)
        self._idle_seconds = metrics.stage_idle_seconds.labels(*labels)
        self._receive_seconds = metrics.stage_receive_seconds.labels(*labels)
        self._queue_seconds = metrics.stage_queue_seconds.labels(*labels)
        self._link: _LinkMetrics | None = None

    def observe(self, timing: StageTiming) -> None:
        """Counts one step."""
        self._compute_seconds.inc(timing.compute_seconds)
        self._idle_seconds.inc(timing.idle_seconds)
        self._receive_seconds.inc(timing.receive_seconds)
        self._queue_seconds.inc(timing.queue_seconds)
        if timing.send is not None:
            if self._link is None:
                self._link = _LinkMetrics(self._metrics, self._replica, self._stage)
            self._link.observe(timing.send)


class _LinkMetrics:
    def __init__(self, metrics: CoordinatorMetrics, replica: int, stage: int) -> None:
        labels = (str(replica), str(stage))
        self._seconds = metrics.stage_send_seconds.labels(*labels)
        self._hidden_seconds = metrics.stage_send_hidden_seconds.labels(*labels)
        self._frames = metrics.stage_sent_frames.labels(*labels)
        link = (str(replica), f"{stage}-{stage + 1}")
        self._hop_seconds = metrics.hop_seconds.labels(*link)
        self._hop_bytes = metrics.hop_bytes.labels(*link)

    def observe(self, send: SendTiming) -> None:
        self._seconds.inc(send.seconds)
        self._hidden_seconds.inc(send.hidden_seconds)
        self._frames.inc(send.num_frames)
        self._hop_seconds.observe(send.seconds)
        self._hop_bytes.inc(send.num_bytes)
