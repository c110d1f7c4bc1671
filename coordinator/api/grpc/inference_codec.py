"""Turns the gRPC API's messages into the APIs' vocabulary and back; it validates nothing else."""

from coordinator.requests.types import (
    JSON_OBJECT,
    ChatPrompt,
    Choice,
    Finish,
    GenerationRequest,
    JsonSchema,
    Prompt,
    PromptToken,
    Regex,
    SamplingOptions,
    SchedulingOptions,
    StructuredOutput,
    TextPrompt,
    TokenPrompt,
    Update,
)
from coordinator.requests.validation import check_counts
from coordinator.tokenization.tokenizer import ChatMessage
from protos import inference_pb2
from runtime.protocol.step import SampledToken
from scheduler import FinishReason

_REASONS = {
    FinishReason.STOP: inference_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: inference_pb2.FINISH_REASON_LENGTH,
}


def check_message(message: inference_pb2.InferRequest, max_prompts: int) -> None:
    """Refuses what would take too long to translate; raises `InvalidRequestError`."""
    looked_at = message.prompts[: max_prompts + 1]
    check_counts(
        num_prompts=len(message.prompts),
        max_prompts=max_prompts,
        num_messages=sum(len(prompt.chat.messages) for prompt in looked_at),
        num_token_ids=sum(len(prompt.token_ids.ids) for prompt in looked_at),
        num_stop_token_ids=len(message.stop_token_ids),
    )


def request_from_proto(
    message: inference_pb2.InferRequest, request_id: str, timeout_seconds: float | None = None
) -> GenerationRequest:
    """What an `Infer` call asks for, which its client gives up after so many seconds."""
    sampling = message.sampling
    return GenerationRequest(
        request_id=request_id,
        model=message.model,
        prompts=tuple(prompt_from_proto(prompt) for prompt in message.prompts),
        sampling=SamplingOptions(
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p if sampling.HasField("top_p") else 1.0,
            min_p=sampling.min_p,
            seed=sampling.seed if sampling.HasField("seed") else None,
            num_logprobs=sampling.num_logprobs,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            repetition_penalty=(
                sampling.repetition_penalty if sampling.HasField("repetition_penalty") else 1.0
            ),
            logit_bias=tuple((entry.token_id, entry.bias) for entry in sampling.logit_bias),
            num_prompt_logprobs=(
                sampling.num_prompt_logprobs if sampling.HasField("num_prompt_logprobs") else None
            ),
        ),
        max_tokens=message.max_tokens if message.HasField("max_tokens") else None,
        ignore_eos=message.ignore_eos,
        stop_token_ids=tuple(message.stop_token_ids),
        stop=tuple(message.stop),
        include_stop=message.include_stop,
        num_choices=message.num_choices or 1,
        min_tokens=message.min_tokens,
        structured_output=_structured_output(message.structured_output),
        scheduling=_scheduling_from_proto(message.scheduling, timeout_seconds),
    )


def _scheduling_from_proto(
    message: inference_pb2.SchedulingParams, timeout_seconds: float | None
) -> SchedulingOptions:
    has_ttft, has_tpot = (message.HasField(f"{name}_target_seconds") for name in ("ttft", "tpot"))
    return SchedulingOptions(
        priority=message.priority,
        ttft_target_seconds=message.ttft_target_seconds if has_ttft else None,
        tpot_target_seconds=message.tpot_target_seconds if has_tpot else None,
        cache_salt=message.cache_salt,
        timeout_seconds=timeout_seconds,
    )


def _structured_output(message: inference_pb2.StructuredOutput) -> StructuredOutput | None:
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


def prompt_from_proto(message: inference_pb2.Prompt) -> Prompt:
    """One prompt; None where the message has no input."""
    match message.WhichOneof("input"):
        case "text":
            return TextPrompt(message.text)
        case "chat":
            chat = message.chat
            has_opening = chat.HasField("add_generation_prompt")
            return ChatPrompt(
                tuple(ChatMessage(m.role, m.content) for m in chat.messages),
                chat.add_generation_prompt if has_opening else None,
                chat.continue_final_message,
            )
        case "token_ids":
            return TokenPrompt(tuple(message.token_ids.ids))
        case _:
            return None


def update_to_proto(update: Update, request_id: str) -> inference_pb2.InferResponse:
    """One response of an `Infer` call."""
    response = inference_pb2.InferResponse(
        request_id=request_id,
        index=update.index,
        choice=update.choice,
        text=update.text,
        tokens=[_token_to_proto(token) for token in update.tokens],
        seed=update.seed,
        prompt_tokens=[_prompt_token_to_proto(token) for token in update.prompt_tokens],
    )
    if update.finish is not None:
        _add_finish(response, update.finish)
    return response


def _token_to_proto(token: SampledToken) -> inference_pb2.Token:
    top = _top_to_proto(token)
    return inference_pb2.Token(id=token.token_id, logprob=token.logprob, top_logprobs=top)


def _prompt_token_to_proto(token: PromptToken) -> inference_pb2.PromptToken:
    top = _top_to_proto(token)
    return inference_pb2.PromptToken(id=token.token_id, logprob=token.logprob, top_logprobs=top)


def _top_to_proto(token: SampledToken | PromptToken) -> list[inference_pb2.TokenLogprob]:
    top = zip(token.top_ids, token.top_logprobs, strict=True)
    return [inference_pb2.TokenLogprob(id=token_id, logprob=logprob) for token_id, logprob in top]


def _add_finish(response: inference_pb2.InferResponse, finish: Finish) -> None:
    response.finish_reason = _REASONS[finish.reason]
    response.usage.prompt_tokens = finish.usage.prompt_tokens
    response.usage.completion_tokens = finish.usage.completion_tokens
    response.usage.cached_prompt_tokens = finish.usage.cached_prompt_tokens
    response.timings.queue_seconds = finish.timings.queue_seconds
    response.timings.first_token_seconds = finish.timings.first_token_seconds
    response.timings.total_seconds = finish.timings.total_seconds
