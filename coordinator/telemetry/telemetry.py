"""Owns what the stages report about their steps: sums for people, counters for Prometheus.

It measures nothing itself; the times of a stage come from its rank 0 with each step's result.
"""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import Counter

from coordinator.membership.assignment import LoadReport
from coordinator.requests.types import Finish
from coordinator.telemetry.stage_metrics import StageMetrics
from runtime.errors import EpochEndedError, StagemeshError
from runtime.metrics.declarations import CoordinatorMetrics
from runtime.protocol.step import SendTiming, StageTiming, Step
from scheduler import SchedulerLimits, StageRecord

_NUM_RECOVERIES: Final = 20
# A prompt of one token, or what is left of one, passes for a decode.
_PHASES: Final = ("prefill", "decode")


@dataclass(slots=True)
class StageTotals:
    """Sums over an epoch for one stage; the sends are those of the hop that leaves it."""

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
        """One step's record, without its send."""
        self.compute_seconds += timing.compute_seconds
        self.idle_seconds += timing.idle_seconds
        self.receive_seconds += timing.receive_seconds
        self.queue_seconds += timing.queue_seconds
        self.num_steps += 1

    def add_send(self, send: SendTiming) -> None:
        """One finished send."""
        self.send_seconds += send.seconds
        self.send_hidden_seconds += send.hidden_seconds
        self.num_frames_sent += send.num_frames
        self.num_bytes_sent += send.num_bytes


@dataclass(slots=True)
class LoadProgress:
    """How far a rank's loading is, and what it holds when it is done."""

    done_bytes: int = 0
    total_bytes: int = 0
    weights_bytes: int = 0
    peak_rss_bytes: int = 0

    def update(self, done_bytes: int, total_bytes: int) -> None:
        """A worker got so far."""
        self.done_bytes, self.total_bytes = done_bytes, total_bytes

    def finish(self, report: LoadReport) -> None:
        """A worker holds its part, newly loaded or from before."""
        self.update(report.weights_bytes, report.weights_bytes)
        self.weights_bytes, self.peak_rss_bytes = report.weights_bytes, report.peak_rss_bytes


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
    """The figures of one replica: loading by rank, sums of the epoch by stage, the last ends."""

    replica: int
    tp_sizes: tuple[int, ...]
    metrics: CoordinatorMetrics
    totals: list[StageTotals] = field(default_factory=list)
    loading: list[list[LoadProgress]] = field(default_factory=list)
    stopped_serving: float | None = None
    # Newest first.
    recoveries: deque[Recovery] = field(default_factory=lambda: deque(maxlen=_NUM_RECOVERIES))
    _num_shown: int = 0
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
        """From now on there are stages of so many ranks."""
        if tp_sizes != self.tp_sizes:
            self.tp_sizes = tp_sizes
            self.__post_init__()

    def start_loading(self) -> None:
        """Forgets how far the ranks were."""
        self.loading = [[LoadProgress() for _ in range(tp_size)] for tp_size in self.tp_sizes]

    def start_epoch(self) -> None:
        """Sums start from zero."""
        self.metrics.epochs.labels(str(self.replica)).inc()
        self.totals = [StageTotals() for _ in self.tp_sizes]

    def show_stages(self, layers: Sequence[int]) -> None:
        """The stages that serve now, by their numbers of layers; there may have been more."""
        self._num_shown = max(self._num_shown, len(layers))
        for stage in range(self._num_shown):
            labels = (str(self.replica), str(stage))
            num_layers = layers[stage] if stage < len(layers) else 0
            self.metrics.stage_up.labels(*labels).set(num_layers > 0)
            self.metrics.stage_layers.labels(*labels).set(num_layers)

    def show_cache(self, limits: SchedulerLimits) -> None:
        """The KV cache that the replica has now."""
        info = {
            "block_size": str(limits.block_size),
            "num_blocks": str(limits.num_blocks),
            "prefix_cache": str(limits.prefix_caching).lower(),
        }
        self.metrics.cache_config.labels(str(self.replica)).info(info)

    def stop_serving(self, now: float, epoch: int, cause: StagemeshError) -> None:
        """An epoch that served is over."""
        for stage in range(self._num_shown):
            self.metrics.stage_up.labels(str(self.replica), str(stage)).set(0)
        self.stopped_serving = now
        end = EpochEndedError.by(cause)
        recovery = Recovery(
            epoch=epoch, cause=end.cause, detail=end.detail, ended_unix_seconds=time.time()
        )
        self.recoveries.appendleft(recovery)

    def start_serving(self, now: float) -> None:
        """Requests are served, for the first time or again."""
        if self.stopped_serving is not None:
            seconds = now - self.stopped_serving
            recovery = self.recoveries[0]
            recovery.seconds = seconds
            labels = (str(self.replica), recovery.cause)
            self.metrics.recovery_seconds.labels(*labels).observe(seconds)

    def record(self, record: StageRecord) -> None:
        """Takes in one step of one stage, with the send that it tells of.

        The scheduler gets the same record, so what it learns from can be read off the metrics.
        """
        totals, timing = self.totals[record.stage], record.timing
        totals.add(timing)
        if timing.send is not None:
            totals.add_send(timing.send)
        self._stages[record.stage].observe(timing)
        if record.stage == len(self.tp_sizes) - 1:
            self._steps.inc()


class StepObserver:
    """What the microbatches carry, and what they cost others."""

    def __init__(self, metrics: CoordinatorMetrics, replica: int) -> None:
        self._tokens = [metrics.step_tokens.labels(str(replica), phase) for phase in _PHASES]
        self._sequences = [metrics.step_sequences.labels(str(replica), phase) for phase in _PHASES]
        self._preemptions = metrics.preemptions.labels(str(replica))
        self._num_preemptions = 0
        self._queried_tokens = metrics.prefix_queried_tokens.labels(str(replica))
        self._hit_tokens = metrics.prefix_hit_tokens.labels(str(replica))
        self._num_queried_tokens = self._num_hit_tokens = 0

    def observe(self, step: Step, num_preemptions: int) -> None:
        """One step leaves; there were `num_preemptions` so far."""
        self._preemptions.inc(num_preemptions - self._num_preemptions)
        self._num_preemptions = num_preemptions
        lengths = [len(chunk.token_ids) for chunk in step.chunks]
        num_decodes = lengths.count(1)
        num_tokens = (sum(lengths) - num_decodes, num_decodes)
        num_sequences = (len(lengths) - num_decodes, num_decodes)
        for phase, _ in enumerate(_PHASES):
            if num_sequences[phase]:
                self._tokens[phase].observe(num_tokens[phase])
                self._sequences[phase].observe(num_sequences[phase])

    def observe_prefix_cache(self, num_queried_tokens: int, num_hit_tokens: int) -> None:
        """So many tokens were looked up and found so far."""
        self._queried_tokens.inc(num_queried_tokens - self._num_queried_tokens)
        self._hit_tokens.inc(num_hit_tokens - self._num_hit_tokens)
        self._num_queried_tokens, self._num_hit_tokens = num_queried_tokens, num_hit_tokens


def observe_finish(metrics: CoordinatorMetrics, api: str, finish: Finish) -> None:
    """One prompt came to its own end."""
    metrics.requests.labels(api, finish.reason.value).inc()
    timings, num_tokens = finish.timings, finish.usage.completion_tokens
    metrics.prompt_length.observe(finish.usage.prompt_tokens)
    metrics.generation_length.observe(num_tokens)
    if num_tokens == 0:
        return
    decode_seconds = timings.total_seconds - timings.first_token_seconds
    metrics.time_to_first_token.observe(timings.first_token_seconds)
    metrics.request_seconds.observe(timings.total_seconds)
    metrics.queue_seconds.observe(timings.queue_seconds)
    metrics.prefill_seconds.observe(timings.first_token_seconds - timings.queue_seconds)
    metrics.decode_seconds.observe(decode_seconds)
    if num_tokens > 1:
        metrics.time_per_output_token.observe(decode_seconds / (num_tokens - 1))
