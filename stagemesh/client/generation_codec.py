"""Turns what a client says and hears of a generation into the API's messages and back."""

from protos import inference_pb2
from stagemesh.client.types import (
    Chat,
    Choice,
    FinishReason,
    GenerationRequest,
    JsonSchema,
    Model,
    Prompt,
    PromptToken,
    Regex,
    StructuredOutput,
    Timings,
    Token,
    TokenIds,
    Update,
    Usage,
)


def request_to_proto(request: GenerationRequest) -> inference_pb2.InferRequest:
    """The message that asks for `request`; ValueError if a number does not fit its field."""
    sampling, scheduling = request.sampling, request.scheduling
    return inference_pb2.InferRequest(
        request_id=request.request_id,
        model=request.model,
        prompts=[prompt_to_proto(prompt) for prompt in request.prompts],
        sampling=inference_pb2.SamplingParams(
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            seed=sampling.seed,
            num_logprobs=sampling.num_logprobs,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            repetition_penalty=sampling.repetition_penalty,
            logit_bias=[
                inference_pb2.LogitBias(token_id=token_id, bias=bias)
                for token_id, bias in sampling.logit_bias
            ],
            num_prompt_logprobs=sampling.num_prompt_logprobs,
        ),
        max_tokens=request.max_tokens,
        ignore_eos=request.ignore_eos,
        stop_token_ids=request.stop_token_ids,
        stop=request.stop,
        include_stop=request.include_stop,
        num_choices=request.num_choices,
        min_tokens=request.min_tokens,
        structured_output=_structured_output_to_proto(request.structured_output),
        scheduling=inference_pb2.SchedulingParams(
            priority=scheduling.priority,
            ttft_target_seconds=scheduling.ttft_target_seconds,
            tpot_target_seconds=scheduling.tpot_target_seconds,
            cache_salt=scheduling.cache_salt,
        ),
    )


def _structured_output_to_proto(
    output: StructuredOutput | None,
) -> inference_pb2.StructuredOutput | None:
    match output:
        case JsonSchema(schema):
            return inference_pb2.StructuredOutput(json_schema=schema)
        case Regex(pattern):
            return inference_pb2.StructuredOutput(regex=pattern)
        case Choice(texts):
            return inference_pb2.StructuredOutput(choice=inference_pb2.Choices(texts=texts))
        case None:
            return None


def models_from_proto(message: inference_pb2.ListModelsResponse) -> tuple[Model, ...]:
    """The models of one answer."""
    return tuple(Model(model.name, model.max_model_len) for model in message.models)


def update_from_proto(message: inference_pb2.InferResponse) -> Update:
    """One response as an `Update`."""
    timings = message.timings
    return Update(
        request_id=message.request_id,
        index=message.index,
        text=message.text,
        tokens=tuple(_token_from_proto(token) for token in message.tokens),
        finish_reason=_FINISH_REASONS.get(message.finish_reason),
        usage=_usage_from_proto(message.usage) if message.HasField("usage") else None,
        timings=Timings(timings.queue_seconds, timings.first_token_seconds, timings.total_seconds)
        if message.HasField("timings")
        else None,
        seed=message.seed if message.HasField("seed") else None,
        choice=message.choice,
        prompt_tokens=tuple(_prompt_token_from_proto(token) for token in message.prompt_tokens),
    )


_FINISH_REASONS = {
    inference_pb2.FINISH_REASON_STOP: FinishReason.STOP,
    inference_pb2.FINISH_REASON_LENGTH: FinishReason.LENGTH,
}


def prompt_to_proto(prompt: Prompt) -> inference_pb2.Prompt:
    """One prompt as a message."""
    match prompt:
        case str():
            return inference_pb2.Prompt(text=prompt)
        case Chat():
            turns = [
                inference_pb2.ChatMessage(role=message.role, content=message.content)
                for message in prompt.messages
            ]
            return inference_pb2.Prompt(
                chat=inference_pb2.Chat(
                    messages=turns,
                    add_generation_prompt=prompt.add_generation_prompt,
                    continue_final_message=prompt.continue_final_message,
                )
            )
        case TokenIds(ids):
            return inference_pb2.Prompt(token_ids=inference_pb2.TokenIds(ids=ids))


def _token_from_proto(token: inference_pb2.Token) -> Token:
    top = tuple((entry.id, entry.logprob) for entry in token.top_logprobs)
    return Token(token.id, token.logprob, top)


def _prompt_token_from_proto(token: inference_pb2.PromptToken) -> PromptToken:
    top = tuple((entry.id, entry.logprob) for entry in token.top_logprobs)
    return PromptToken(token.id, token.logprob if token.HasField("logprob") else None, top)


def _usage_from_proto(message: inference_pb2.Usage) -> Usage:
    return Usage(message.prompt_tokens, message.completion_tokens, message.cached_prompt_tokens)
