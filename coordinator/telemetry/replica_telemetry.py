"""Collects the telemetry of one replica: loading, step times per stage, epochs and recoveries.

It measures nothing itself; the stages report their times with each step's result.
"""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import Counter

from coordinator.telemetry.stage_telemetry import LoadProgress, StageMetrics, StageTotals
from runtime.errors import EpochEndedError, StagemeshError
from runtime.metrics.declarations import CoordinatorMetrics
from scheduler import SchedulerLimits, StageRecord

_NUM_RECOVERIES: Final = 20


@dataclass(slots=True, kw_only=True)
class Recovery:
    """The end of an epoch that served; `seconds` is None until requests are served again."""

    epoch: int
    cause: str
    detail: str
    ended_unix_seconds: float
    seconds: float | None = None


@dataclass(slots=True)
class ReplicaTelemetry:
    """Loading progress by stage and rank, the epoch's sums by stage, and the latest recoveries."""

    replica: int
    tp_sizes: tuple[int, ...]
    metrics: CoordinatorMetrics
    totals: list[StageTotals] = field(default_factory=list)
    loading: list[list[LoadProgress]] = field(default_factory=list)
    stopped_serving: float | None = None
    # Newest first.
    recoveries: deque[Recovery] = field(default_factory=lambda: deque(maxlen=_NUM_RECOVERIES))
    _num_exported: int = 0
    _steps: Counter = field(init=False)
    _stages: list[StageMetrics] = field(init=False)

    def __post_init__(self) -> None:
        self.start_loading()
        self.totals = [StageTotals() for _ in self.tp_sizes]
        self._steps = self.metrics.steps.labels(str(self.replica))
        self._stages = [
            StageMetrics(self.metrics, self.replica, stage) for stage in range(len(self.tp_sizes))
        ]

    def reshape(self, tp_sizes: tuple[int, ...]) -> None:
        """Sets a new layout: the number of ranks of each stage."""
        if tp_sizes != self.tp_sizes:
            self.tp_sizes = tp_sizes
            self.__post_init__()

    def start_loading(self) -> None:
        """Resets the loading progress of every rank."""
        self.loading = [[LoadProgress() for _ in range(tp_size)] for tp_size in self.tp_sizes]

    def start_epoch(self) -> None:
        """Counts an epoch and resets the sums."""
        self.metrics.epochs.labels(str(self.replica)).inc()
        self.totals = [StageTotals() for _ in self.tp_sizes]

    def export_stages(self, layers: Sequence[int]) -> None:
        """Exports the layers of each serving stage; stages of an earlier layout get 0."""
        self._num_exported = max(self._num_exported, len(layers))
        for stage in range(self._num_exported):
            labels = (str(self.replica), str(stage))
            num_layers = layers[stage] if stage < len(layers) else 0
            self.metrics.stage_up.labels(*labels).set(num_layers > 0)
            self.metrics.stage_layers.labels(*labels).set(num_layers)

    def export_cache_config(self, limits: SchedulerLimits) -> None:
        """Exports the configuration of the KV cache."""
        info = {
            "block_size": str(limits.block_size),
            "num_blocks": str(limits.num_blocks),
            "prefix_cache": str(limits.prefix_caching).lower(),
        }
        self.metrics.cache_config.labels(str(self.replica)).info(info)

    def stop_serving(self, now: float, epoch: int, cause: StagemeshError) -> None:
        """Records the end of an epoch that served; `now` is in the clock's seconds."""
        for stage in range(self._num_exported):
            self.metrics.stage_up.labels(str(self.replica), str(stage)).set(0)
        self.stopped_serving = now
        end = EpochEndedError.caused_by(cause)
        recovery = Recovery(
            epoch=epoch, cause=end.cause, detail=end.detail, ended_unix_seconds=time.time()
        )
        self.recoveries.appendleft(recovery)

    def start_serving(self, now: float) -> None:
        """Ends the running recovery, if there is one."""
        if self.stopped_serving is not None:
            seconds = now - self.stopped_serving
            recovery = self.recoveries[0]
            recovery.seconds = seconds
            labels = (str(self.replica), recovery.cause)
            self.metrics.recovery_seconds.labels(*labels).observe(seconds)

    def record(self, record: StageRecord) -> None:
        """Adds one step of one stage.

        The scheduler gets the same record, so the metrics show what its cost model learns from.
        """
        self.totals[record.stage].add(record.timing)
        self._stages[record.stage].observe(record.timing)
        if record.stage == len(self.tp_sizes) - 1:
            self._steps.inc()
