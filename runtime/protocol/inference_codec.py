"""Converts generation requests and updates to protobuf messages and back; validates nothing."""

from dataclasses import asdict
from typing import Any

from google.protobuf.message import Message

from protos import inference_pb2
from runtime.protocol.inference_types import (
    JSON_OBJECT,
    Chat,
    ChatMessage,
    Choice,
    Finish,
    FinishReason,
    GenerationRequest,
    JsonSchema,
    Model,
    Prompt,
    PromptToken,
    Regex,
    Sampling,
    Scheduling,
    StructuredOutput,
    Timings,
    Token,
    TokenIds,
    Update,
    Usage,
)

_REASONS_TO_PROTO = {
    FinishReason.STOP: inference_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: inference_pb2.FINISH_REASON_LENGTH,
}
_REASONS_FROM_PROTO = {number: reason for reason, number in _REASONS_TO_PROTO.items()}


def request_to_proto(request: GenerationRequest) -> inference_pb2.InferRequest:
    """The message of `request`; raises ValueError if a number does not fit its field."""
    sampling = request.sampling
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
        structured_output=_constraint_to_proto(request.structured_output),
        scheduling=inference_pb2.SchedulingParams(**asdict(request.scheduling)),
    )


def request_from_proto(message: inference_pb2.InferRequest, request_id: str) -> GenerationRequest:
    """The request of an `Infer` call; `request_id` is the message's or one from elsewhere."""
    sampling, scheduling = message.sampling, message.scheduling
    return GenerationRequest(
        request_id=request_id,
        model=message.model,
        prompts=tuple(prompt_from_proto(prompt) for prompt in message.prompts),
        sampling=Sampling(
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=_optional(sampling, "top_p", 1.0),
            min_p=sampling.min_p,
            seed=_optional(sampling, "seed"),
            num_logprobs=sampling.num_logprobs,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            repetition_penalty=_optional(sampling, "repetition_penalty", 1.0),
            logit_bias=tuple((entry.token_id, entry.bias) for entry in sampling.logit_bias),
            num_prompt_logprobs=_optional(sampling, "num_prompt_logprobs"),
        ),
        max_tokens=_optional(message, "max_tokens"),
        ignore_eos=message.ignore_eos,
        stop_token_ids=tuple(message.stop_token_ids),
        stop=tuple(message.stop),
        include_stop=message.include_stop,
        num_choices=message.num_choices or 1,
        min_tokens=message.min_tokens,
        structured_output=_constraint_from_proto(message.structured_output),
        scheduling=Scheduling(
            priority=scheduling.priority,
            ttft_target_seconds=_optional(scheduling, "ttft_target_seconds"),
            tpot_target_seconds=_optional(scheduling, "tpot_target_seconds"),
            cache_salt=scheduling.cache_salt,
        ),
    )


def prompt_to_proto(prompt: Prompt) -> inference_pb2.Prompt:
    """One prompt as a message."""
    match prompt:
        case str():
            return inference_pb2.Prompt(text=prompt)
        case Chat():
            return inference_pb2.Prompt(
                chat=inference_pb2.Chat(
                    messages=[
                        inference_pb2.ChatMessage(role=turn.role, content=turn.content)
                        for turn in prompt.messages
                    ],
                    add_generation_prompt=prompt.add_generation_prompt,
                    continue_final_message=prompt.continue_final_message,
                )
            )
        case TokenIds(ids):
            return inference_pb2.Prompt(token_ids=inference_pb2.TokenIds(ids=ids))


def prompt_from_proto(message: inference_pb2.Prompt) -> Prompt:
    """One prompt; a message without input has no tokens.

    It is no empty text: a tokenizer may start a text with a token of its own.
    """
    match message.WhichOneof("input"):
        case "chat":
            chat = message.chat
            return Chat(
                tuple(ChatMessage(turn.role, turn.content) for turn in chat.messages),
                _optional(chat, "add_generation_prompt"),
                chat.continue_final_message,
            )
        case "token_ids":
            return TokenIds(tuple(message.token_ids.ids))
        case "text":
            return message.text
        case _:
            return TokenIds(())


def _constraint_to_proto(
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


def _constraint_from_proto(message: inference_pb2.StructuredOutput) -> StructuredOutput | None:
    match message.WhichOneof("constraint"):
        case "json_schema":
            return JsonSchema(message.json_schema)
        case "json_object" if message.json_object:
            return JSON_OBJECT
        case "regex":
            return Regex(message.regex)
        case "choice":
            return Choice(tuple(message.choice.texts))
        case _:
            return None


def update_to_proto(update: Update) -> inference_pb2.InferResponse:
    """One response of an `Infer` call."""
    response = inference_pb2.InferResponse(
        request_id=update.request_id,
        index=update.index,
        choice=update.choice,
        text=update.text,
        tokens=[
            inference_pb2.Token(id=token.id, logprob=token.logprob, top_logprobs=_top(token))
            for token in update.tokens
        ],
        seed=update.seed,
        prompt_tokens=[
            inference_pb2.PromptToken(id=token.id, logprob=token.logprob, top_logprobs=_top(token))
            for token in update.prompt_tokens
        ],
    )
    if update.finish is not None:
        response.finish_reason = _REASONS_TO_PROTO[update.finish.reason]
        response.usage.CopyFrom(inference_pb2.Usage(**asdict(update.finish.usage)))
        response.timings.CopyFrom(inference_pb2.Timings(**asdict(update.finish.timings)))
    return response


def update_from_proto(message: inference_pb2.InferResponse) -> Update:
    """One response of an `Infer` call as an `Update`."""
    return Update(
        request_id=message.request_id,
        index=message.index,
        text=message.text,
        tokens=tuple(
            Token(token.id, token.logprob, _pairs(token.top_logprobs)) for token in message.tokens
        ),
        finish=_finish_from_proto(message),
        seed=_optional(message, "seed"),
        choice=message.choice,
        prompt_tokens=tuple(
            PromptToken(token.id, _optional(token, "logprob"), _pairs(token.top_logprobs))
            for token in message.prompt_tokens
        ),
    )


def models_from_proto(message: inference_pb2.ListModelsResponse) -> tuple[Model, ...]:
    """The models of one `ListModels` response."""
    return tuple(Model(model.name, model.max_model_len) for model in message.models)


def _finish_from_proto(message: inference_pb2.InferResponse) -> Finish | None:
    reason = _REASONS_FROM_PROTO.get(message.finish_reason)
    if reason is None:
        return None
    usage, timings = message.usage, message.timings
    return Finish(
        reason,
        Usage(usage.prompt_tokens, usage.completion_tokens, usage.cached_prompt_tokens),
        Timings(timings.queue_seconds, timings.first_token_seconds, timings.total_seconds),
    )


def _top(token: Token | PromptToken) -> list[inference_pb2.TokenLogprob]:
    return [
        inference_pb2.TokenLogprob(id=token_id, logprob=logprob)
        for token_id, logprob in token.top_logprobs
    ]


def _pairs(top_logprobs: Any) -> tuple[tuple[int, float], ...]:
    return tuple((entry.id, entry.logprob) for entry in top_logprobs)


def _optional(message: Message, field: str, default: Any = None) -> Any:
    """A field's value, or `default` where the field is unset."""
    return getattr(message, field) if message.HasField(field) else default
