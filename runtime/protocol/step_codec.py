"""Converts the classes of `runtime/protocol/step.py` to protobuf and back; checks nothing.

Round trips are exact with this exception: the wire's sampling parameters and log-probabilities are
float32, so a value that float32 cannot hold is rounded once, before any rank sees it.
"""

from protos import stage_pb2
from runtime.protocol.step import (
    SequenceChunk,
    SlotOpening,
    SlotSampling,
    Step,
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
            num_prompt_logprobs=sampling.num_prompt_logprobs,
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
            num_prompt_logprobs=(
                sampling.num_prompt_logprobs if sampling.HasField("num_prompt_logprobs") else None
            ),
        ),
    )


def _chunk_to_proto(chunk: SequenceChunk) -> stage_pb2.SequenceChunk:
    return stage_pb2.SequenceChunk(
        slot=chunk.slot,
        position=chunk.position,
        token_ids=chunk.token_ids,
        new_block_ids=chunk.new_block_ids,
        sample=chunk.sample,
        next_token_id=chunk.next_token_id,
    )


def _chunk_from_proto(message: stage_pb2.SequenceChunk) -> SequenceChunk:
    return SequenceChunk(
        slot=message.slot,
        position=message.position,
        token_ids=tuple(message.token_ids),
        new_block_ids=tuple(message.new_block_ids),
        sample=message.sample,
        next_token_id=message.next_token_id if message.HasField("next_token_id") else None,
    )
