"""The modelled pipeline: stages, links with latency and bandwidth, credit windows.

Stages run steps strictly in order, so the times of a step follow from those of the steps before
it: they are known when the step is sent, and need no events.
"""

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from runtime.protocol.step import SendTiming, StageTiming, Step
from scheduler import StepWork
from simulator.model.stage_times import ModelTimes

NUM_OUTBOX = 3
"""Outputs that a stage holds or sends before it waits for credits, as in a real worker."""


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """A link from a stage to the next."""

    latency_seconds: float = 0.0005
    bytes_per_second: float = 12.5e9


@dataclass(frozen=True, slots=True)
class SpeedChange:
    """From `at_seconds` on, a stage takes `factor` times its modelled time."""

    at_seconds: float
    stage: int
    factor: float


@dataclass(frozen=True, slots=True)
class PipelineSpec:
    """One replica: the whole model's times, each stage's share of them, and the links.

    `noise` is the standard deviation of the logarithm of a factor on every compute time;
    `window` the number of credits of each link; `latency_seconds` the latency between the
    coordinator and the first or last stage.
    """

    times: ModelTimes
    shares: tuple[float, ...]
    link: LinkSpec = LinkSpec()
    row_bytes: int = 16384
    window: int = 8
    noise: float = 0.05
    latency_seconds: float = 0.0005
    changes: tuple[SpeedChange, ...] = ()

    @property
    def num_stages(self) -> int:
        return len(self.shares)


@dataclass(frozen=True, slots=True)
class StageVisit:
    """One step in one stage; times in seconds on the simulation's clock."""

    stage: int
    arrived_at: float
    started_at: float
    ended_at: float
    timing: StageTiming


@dataclass(frozen=True, slots=True)
class StepTrace:
    """A step's visits to all stages, and the time at which the coordinator has its result."""

    visits: tuple[StageVisit, ...]
    done_at: float


class _Stage:
    """When a stage and the link behind it are free, and the start times of the last steps."""

    def __init__(self, window: int) -> None:
        self.free_at = 0.0
        self.link_free_at = 0.0
        self.starts: deque[float] = deque(maxlen=window + NUM_OUTBOX)
        self.last_send: tuple[int, float, float, int] | None = None  # step, ready, sent, bytes


class Pipeline:
    """The state of one replica's stages while a trace is replayed."""

    def __init__(self, spec: PipelineSpec, seed: int) -> None:
        self._spec = spec
        self._random = random.Random(seed)
        self._stages = [_Stage(spec.window) for _ in spec.shares]

    def send(self, number: int, work: StepWork, now: float) -> StepTrace:
        """Returns the trace of a step that is sent at `now`; steps are sent in order."""
        whole_seconds = self._spec.times.seconds(work)
        arrived_at = now + self._spec.latency_seconds
        receive_seconds = 0.0
        visits = []
        for index in range(len(self._stages)):
            visit = self._visit(index, number, arrived_at, receive_seconds, whole_seconds)
            visits.append(visit)
            arrived_at = self._forward(index, number, work, visit)
            receive_seconds = (
                work.num_tokens * self._spec.row_bytes / self._spec.link.bytes_per_second
            )
        return StepTrace(tuple(visits), visits[-1].ended_at + self._spec.latency_seconds)

    def _visit(
        self,
        index: int,
        number: int,
        arrived_at: float,
        receive_seconds: float,
        whole_seconds: float,
    ) -> StageVisit:
        stage = self._stages[index]
        started_at = max(arrived_at, stage.free_at, self._credit_at(index, self._outputs_allowed))
        seconds = whole_seconds * self._spec.shares[index] * self._factor(index, started_at)
        ended_at = started_at + seconds
        timing = StageTiming(
            receive_seconds=receive_seconds,
            queue_seconds=started_at - arrived_at,
            compute_seconds=seconds,
            idle_seconds=started_at - stage.free_at,
            send=_send_timing(stage.last_send, started_at, ended_at),
        )
        stage.free_at = ended_at
        stage.starts.append(started_at)
        return StageVisit(index, arrived_at, started_at, ended_at, timing)

    def _forward(self, index: int, number: int, work: StepWork, visit: StageVisit) -> float:
        """Sends a stage's output; returns when the next stage has it."""
        if index == len(self._stages) - 1:
            return visit.ended_at
        stage, link = self._stages[index], self._spec.link
        num_bytes = work.num_tokens * self._spec.row_bytes
        send_at = max(visit.ended_at, stage.link_free_at, self._credit_at(index, self._spec.window))
        stage.link_free_at = send_at + num_bytes / link.bytes_per_second
        stage.last_send = (number, visit.ended_at, stage.link_free_at, num_bytes)
        return stage.link_free_at + link.latency_seconds

    @property
    def _outputs_allowed(self) -> int:
        return self._spec.window + NUM_OUTBOX

    def _credit_at(self, index: int, num_ahead: int) -> float:
        """When the next stage starts the step `num_ahead` before this one, which frees a credit."""
        if index == len(self._stages) - 1:
            return 0.0
        starts = self._stages[index + 1].starts
        return starts[-num_ahead] if len(starts) >= num_ahead else 0.0

    def _factor(self, index: int, now: float) -> float:
        noise = self._spec.noise
        factor = self._random.lognormvariate(-noise * noise / 2, noise) if noise else 1.0
        for change in self._spec.changes:
            if change.stage == index and now >= change.at_seconds:
                factor *= change.factor
        return factor


def layer_shares(layers: Sequence[int], head_layers: float = 0.0) -> tuple[float, ...]:
    """Each stage's share of the model; the last also has a head that costs `head_layers` layers."""
    costs = [float(count) for count in layers]
    costs[-1] += head_layers
    return tuple(cost / sum(costs) for cost in costs)


def _send_timing(
    last_send: tuple[int, float, float, int] | None, started_at: float, ended_at: float
) -> SendTiming | None:
    """The previous step's send; the part that overlaps this step's compute is hidden."""
    if last_send is None:
        return None
    step, ready_at, sent_at, num_bytes = last_send
    hidden = max(0.0, min(sent_at, ended_at) - max(ready_at, started_at))
    return SendTiming(step, sent_at - ready_at, hidden, 1, num_bytes)


def work_of(step: Step) -> StepWork:
    """Counts a step's work from its chunks, as a stage does."""
    num_decodes = attention = context = num_sampled = num_tokens = 0
    for chunk in step.chunks:
        length = len(chunk.token_ids)
        num_tokens += length
        num_sampled += chunk.sample
        if length == 1:
            num_decodes += 1
            context += chunk.position
        else:
            attention += length * (2 * chunk.position + length)
    return StepWork(num_tokens, num_decodes, attention, context, len(step.chunks), num_sampled)
