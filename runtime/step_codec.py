"""Turns the classes of `runtime/step.py` into protobuf and back; it decides and checks nothing.

Round trips are exact but for this: the wire's sampling parameters and log-probabilities are
float32, so a value that float32 cannot hold is rounded once, before any rank sees it.
"""

from protos import stage_pb2
from runtime.step import (
    SampledToken,
    SendTiming,
    SequenceChunk,
    SlotOpening,
    SlotSampling,
    StageTiming,
    Step,
    StepResult,
)


def step_to_header(step: Step) -> stage_pb2.StepHeader:
    """The header that stage 0 receives and every stage forwards verbatim."""
    return stage_pb2.StepHeader(
        step=step.number,
        released_slots=step.released_slots,
        opened_slots=[_opening_to_proto(opening) for opening in step.opened_slots],
        chunks=[_chunk_to_proto(chunk) for chunk in step.chunks],
    )


def header_to_step(header: stage_pb2.StepHeader) -> Step:
    """The inverse of `step_to_header`."""
    return Step(
        number=header.step,
        released_slots=tuple(header.released_slots),
        opened_slots=tuple(_opening_from_proto(opening) for opening in header.opened_slots),
        chunks=tuple(_chunk_from_proto(chunk) for chunk in header.chunks),
    )


def result_to_proto(result: StepResult) -> stage_pb2.StepResult:
    """One message of the `Results` stream; failures are the stage service's own to add."""
    return stage_pb2.StepResult(
        step=result.step,
        sampled=[_sampled_to_proto(token) for token in result.sampled],
        timing=timing_to_proto(result.timing),
    )


def result_from_proto(message: stage_pb2.StepResult) -> StepResult:
    """The inverse of `result_to_proto`; the caller has looked at `message.failure` before."""
    return StepResult(
        step=message.step,
        sampled=tuple(_sampled_from_proto(token) for token in message.sampled),
        timing=timing_from_proto(message.timing),
    )


def timing_to_proto(timing: StageTiming) -> stage_pb2.StageTiming:
    """One stage's record of one step."""
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
        receive_seconds=message.receive_seconds,
        queue_seconds=message.queue_seconds,
        compute_seconds=message.compute_seconds,
        idle_seconds=message.idle_seconds,
        send=_send_from_proto(message.send) if message.HasField("send") else None,
    )


def _opening_to_proto(opening: SlotOpening) -> stage_pb2.SlotOpening:
    sampling = opening.sampling
    return stage_pb2.SlotOpening(
        slot=opening.slot,
        cached_token_ids=opening.cached_token_ids,
        cached_block_ids=opening.cached_block_ids,
        sampling=stage_pb2.SlotSampling(
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            seed=sampling.seed,
            choice=sampling.choice,
            num_logprobs=sampling.num_logprobs,
            suppressed_ids=sampling.suppressed_ids,
            suppressed_until=sampling.suppressed_until,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            repetition_penalty=sampling.repetition_penalty,
            num_prompt_tokens=sampling.num_prompt_tokens,
            logit_bias=[
                stage_pb2.SlotLogitBias(token_id=token_id, bias=bias)
                for token_id, bias in sampling.logit_bias
            ],
            grammar=sampling.grammar,
        ),
    )


def _opening_from_proto(message: stage_pb2.SlotOpening) -> SlotOpening:
    sampling = message.sampling
    return SlotOpening(
        slot=message.slot,
        cached_token_ids=tuple(message.cached_token_ids),
        cached_block_ids=tuple(message.cached_block_ids),
        sampling=SlotSampling(
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            seed=sampling.seed,
            choice=sampling.choice,
            num_logprobs=sampling.num_logprobs,
            suppressed_ids=tuple(sampling.suppressed_ids),
            suppressed_until=sampling.suppressed_until,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            repetition_penalty=sampling.repetition_penalty,
            num_prompt_tokens=sampling.num_prompt_tokens,
            logit_bias=tuple((entry.token_id, entry.bias) for entry in sampling.logit_bias),
            grammar=sampling.grammar,
        ),
    )


def _chunk_to_proto(chunk: SequenceChunk) -> stage_pb2.SequenceChunk:
    return stage_pb2.SequenceChunk(
        slot=chunk.slot,
        position=chunk.position,
        token_ids=chunk.token_ids,
        new_block_ids=chunk.new_block_ids,
        sample=chunk.sample,
    )


def _chunk_from_proto(message: stage_pb2.SequenceChunk) -> SequenceChunk:
    return SequenceChunk(
        slot=message.slot,
        position=message.position,
        token_ids=tuple(message.token_ids),
        new_block_ids=tuple(message.new_block_ids),
        sample=message.sample,
    )


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
        seconds=message.seconds,
        hidden_seconds=message.hidden_seconds,
        num_frames=message.num_frames,
        num_bytes=message.num_bytes,
    )
