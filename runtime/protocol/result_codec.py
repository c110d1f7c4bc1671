"""Converts a stage's results to protobuf and back.

Round trips are exact with these exceptions: log-probabilities are float32 on the wire, and an
implausible time becomes 0, so that sums, counters and estimates need not check a worker's values.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final

from protos import mesh_pb2, stage_pb2
from runtime.protocol.step import (
    RankActivity,
    SampledToken,
    ScoredToken,
    SendTiming,
    StageTiming,
    StepResult,
)

# Size of the scored tokens in one message: half a megabyte.
MAX_LOGPROBS_PER_MESSAGE: Final = 1 << 16
# A century in seconds, the upper bound of any time.
_MAX_SECONDS: Final = 3.2e9


def result_to_protos(result: StepResult) -> Iterator[stage_pb2.StepResult]:
    """The messages of the `Results` stream for one step, each of bounded size."""
    scored = list(result.scored)
    while (count := _fitting(scored)) < len(scored):
        part, scored = scored[:count], scored[count:]
        yield stage_pb2.StepResult(
            step=result.step, scored=[_scored_to_proto(token) for token in part], continues=True
        )
    yield result_to_proto(replace(result, scored=tuple(scored)))


def _fitting(scored: Sequence[ScoredToken]) -> int:
    """The number of scored tokens per message."""
    num_logprobs = 0
    for count, token in enumerate(scored):
        num_logprobs += 1 + len(token.top_ids)
        if count and num_logprobs > MAX_LOGPROBS_PER_MESSAGE:
            return count
    return len(scored)


def result_to_proto(result: StepResult) -> stage_pb2.StepResult:
    """A result in one message; the stage service adds failures."""
    return stage_pb2.StepResult(
        step=result.step,
        sampled=[_sampled_to_proto(token) for token in result.sampled],
        timing=timing_to_proto(result.timing),
        scored=[_scored_to_proto(token) for token in result.scored],
    )


def result_from_proto(
    message: stage_pb2.StepResult, parts: Sequence[stage_pb2.StepResult] = ()
) -> StepResult:
    """The inverse of `result_to_protos`, whose last message it is, after all `parts`.

    The caller checks `message.failure` first.
    """
    scored = chain.from_iterable(part.scored for part in (*parts, message))
    return StepResult(
        step=message.step,
        sampled=tuple(_sampled_from_proto(token) for token in message.sampled),
        timing=timing_from_proto(message.timing),
        scored=tuple(_scored_from_proto(token) for token in scored),
    )


def timing_to_proto(timing: StageTiming) -> stage_pb2.StageTiming:
    """One stage's timing of one step."""
    return stage_pb2.StageTiming(
        receive_seconds=timing.receive_seconds,
        queue_seconds=timing.queue_seconds,
        compute_seconds=timing.compute_seconds,
        idle_seconds=timing.idle_seconds,
        send=None if timing.send is None else _send_to_proto(timing.send),
    )


def timing_from_proto(message: stage_pb2.StageTiming) -> StageTiming:
    """The inverse of `timing_to_proto`."""
    return StageTiming(
        receive_seconds=_measured(message.receive_seconds),
        queue_seconds=_measured(message.queue_seconds),
        compute_seconds=_measured(message.compute_seconds),
        idle_seconds=_measured(message.idle_seconds),
        send=_send_from_proto(message.send) if message.HasField("send") else None,
    )


def activity_to_proto(activity: RankActivity, epoch: stage_pb2.EpochId) -> mesh_pb2.RankActivity:
    """A rank's activity in `epoch`."""
    return mesh_pb2.RankActivity(
        epoch=epoch,
        num_steps=activity.num_steps,
        compute_seconds=activity.compute_seconds,
        wait_seconds=activity.wait_seconds,
        num_bytes_sent=activity.num_bytes_sent,
    )


def activity_from_proto(message: mesh_pb2.RankActivity) -> RankActivity:
    """The inverse, without the epoch."""
    return RankActivity(
        message.num_steps,
        _measured(message.compute_seconds),
        _measured(message.wait_seconds),
        message.num_bytes_sent,
    )


def _measured(seconds: float) -> float:
    """0 for negative, non-finite or excessive values."""
    return seconds if 0.0 <= seconds <= _MAX_SECONDS else 0.0


def _sampled_to_proto(token: SampledToken) -> stage_pb2.SampledToken:
    return stage_pb2.SampledToken(
        slot=token.slot,
        token_id=token.token_id,
        logprob=token.logprob,
        top_ids=token.top_ids,
        top_logprobs=token.top_logprobs,
        problem=token.problem,
    )


def _sampled_from_proto(message: stage_pb2.SampledToken) -> SampledToken:
    return SampledToken(
        slot=message.slot,
        token_id=message.token_id,
        logprob=message.logprob,
        top_ids=tuple(message.top_ids),
        top_logprobs=tuple(message.top_logprobs),
        problem=message.problem,
    )


def _scored_to_proto(token: ScoredToken) -> stage_pb2.ScoredToken:
    return stage_pb2.ScoredToken(
        slot=token.slot,
        position=token.position,
        token_id=token.token_id,
        logprob=token.logprob,
        top_ids=token.top_ids,
        top_logprobs=token.top_logprobs,
    )


def _scored_from_proto(message: stage_pb2.ScoredToken) -> ScoredToken:
    """One scored token of a step's result."""
    return ScoredToken(
        slot=message.slot,
        position=message.position,
        token_id=message.token_id,
        logprob=message.logprob,
        top_ids=tuple(message.top_ids),
        top_logprobs=tuple(message.top_logprobs),
    )


def _send_to_proto(send: SendTiming) -> stage_pb2.SendTiming:
    return stage_pb2.SendTiming(
        step=send.step,
        seconds=send.seconds,
        hidden_seconds=send.hidden_seconds,
        num_frames=send.num_frames,
        num_bytes=send.num_bytes,
    )


def _send_from_proto(message: stage_pb2.SendTiming) -> SendTiming:
    return SendTiming(
        step=message.step,
        seconds=_measured(message.seconds),
        hidden_seconds=_measured(message.hidden_seconds),
        num_frames=message.num_frames,
        num_bytes=message.num_bytes,
    )
