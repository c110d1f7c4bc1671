"""Owns one stage's part of the metrics: labels are looked up once, because steps are many."""

from runtime.metrics.declarations import CoordinatorMetrics
from runtime.protocol.step import SendTiming, StageTiming


class StageMetrics:
    """What one stage measured of its steps; a stage that never sends shows no link."""

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
        """One step's record."""
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
