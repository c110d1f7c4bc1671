"""Summarises a replay: latencies, rates, idle time, and ratios to their theoretical limits."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scheduler import EfficiencyRatios, StepWork
from simulator.model.pipeline import PipelineSpec
from simulator.replay import RunResult
from simulator.workload.outcomes import RequestOutcome, StepSpan, Targets


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles in seconds; NaN without values."""

    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Percentiles":
        """Returns nearest-rank percentiles."""
        ordered = sorted(values)

        def at(share: float) -> float:
            return ordered[math.ceil(share * len(ordered)) - 1] if ordered else math.nan

        return cls(at(0.5), at(0.9), at(0.99))


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of one replay; times in seconds, rates per second."""

    num_requests: int
    good_share: float
    request_rate: float
    token_rate: float
    ttft: Percentiles
    tpot: Percentiles
    bubble_share: float
    num_steps: int
    num_preemptions: int
    prefix_hit_share: float
    ratios: EfficiencyRatios


def summarise(
    result: RunResult, pipeline: PipelineSpec, targets: Targets, num_in_flight: int
) -> Summary:
    """Summarises a complete replay."""
    outcomes, spans = result.outcomes, result.spans
    seconds = max(span.step_trace.done_at for span in spans) - spans[0].sent_at
    ttft = [each.ttft_seconds for each in outcomes if each.ttft_seconds is not None]
    tpot = [each.tpot_seconds for each in outcomes if each.tpot_seconds is not None]
    busy = busy_seconds(spans, result.num_stages)
    return Summary(
        num_requests=len(outcomes),
        good_share=sum(map(targets.met, outcomes)) / len(outcomes),
        request_rate=len(ttft) / seconds,
        token_rate=sum(outcome.num_tokens for outcome in outcomes) / seconds,
        ttft=Percentiles.of(ttft),
        tpot=Percentiles.of(tpot),
        bubble_share=1.0 - sum(busy) / (len(busy) * seconds),
        num_steps=len(spans),
        num_preemptions=result.num_preemptions,
        prefix_hit_share=result.num_hit_tokens / max(1, result.num_queried_tokens),
        ratios=EfficiencyRatios(
            throughput=max(busy) / seconds,
            occupancy=_occupancy(spans, busy, seconds, num_in_flight),
            tpot=_tpot_ratio(spans, tpot),
            ttft=_ttft_ratio(outcomes, spans, pipeline),
        ),
    )


def busy_seconds(spans: Sequence[StepSpan], num_stages: int) -> list[float]:
    """Seconds that each stage computed."""
    return [
        sum(span.step_trace.visits[stage].timing.compute_seconds for span in spans)
        for stage in range(num_stages)
    ]


def _occupancy(
    spans: Sequence[StepSpan], busy: Sequence[float], seconds: float, num_in_flight: int
) -> float:
    around = sum(_round_trip_seconds(span) for span in spans)
    return max(busy) / seconds / min(1.0, num_in_flight * max(busy) / around)


def _round_trip_seconds(span: StepSpan) -> float:
    """A step's round trip without its time in queues."""
    queued = sum(visit.timing.queue_seconds for visit in span.step_trace.visits)
    return span.step_trace.done_at - span.sent_at - queued


def _tpot_ratio(spans: Sequence[StepSpan], tpot: Sequence[float]) -> float:
    with_decodes = [_round_trip_seconds(span) for span in spans if span.work.num_decodes]
    if not with_decodes or not tpot:
        return math.nan
    return min(with_decodes) / Percentiles.of(tpot).p50


def _ttft_ratio(
    outcomes: Sequence[RequestOutcome], spans: Sequence[StepSpan], pipeline: PipelineSpec
) -> float:
    """All stages count as the fastest one at its lowest noise, so the ratio is at most 1."""
    fastest = min(
        visit.timing.compute_seconds / pipeline.times.seconds(span.work)
        for span in spans
        for visit in span.step_trace.visits
        if span.work.num_tokens
    )
    fixed, per_token = _line_below(pipeline, max(span.work.num_tokens for span in spans))
    num_hops = pipeline.num_stages - 1
    links = num_hops * pipeline.link.latency_seconds + 2 * pipeline.latency_seconds
    ratios = []
    for outcome in outcomes:
        if outcome.ttft_seconds is not None:
            num_tokens = outcome.request.num_prompt_tokens - outcome.num_cached_tokens
            work = fastest * per_token * num_tokens
            pieces = (math.sqrt(work) + math.sqrt(num_hops * fastest * fixed)) ** 2
            ratios.append((max(pieces, fastest * fixed) + links) / outcome.ttft_seconds)
    return Percentiles.of(ratios).p50


def _line_below(pipeline: PipelineSpec, max_tokens: int) -> tuple[float, float]:
    """(a, b) with a + b*x at most the model's time for any chunk of x tokens, x <= max_tokens."""
    fixed = pipeline.times.seconds(StepWork(num_tokens=1, num_decodes=1))
    sizes = {2**power for power in range(1, 20) if 2**power < max_tokens} | {max(2, max_tokens)}
    slope = min(
        (pipeline.times.seconds(StepWork(num_tokens=size, prefill_attention=size**2)) - fixed)
        / size
        for size in sizes
    )
    return fixed, max(0.0, slope)
