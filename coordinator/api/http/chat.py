"""The route /v1/chat/completions: its parameters and the JSON of its responses."""

from collections.abc import Iterator
from typing import Final

from coordinator.api.http.json_reader import Fields, as_object, refuse, text
from coordinator.api.http.request_parser import parse_delivery, parse_max_tokens, parse_request
from coordinator.api.http.response_builder import JSON, ChoiceAccumulator, ParsedCall, finish_name
from coordinator.output.token_bytes import TokenBytes
from coordinator.tokenization.model_info import ServedModel
from runtime.protocol.inference_types import Chat, ChatMessage, Token, Update


def parse_chat(fields: Fields, request_id: str) -> ParsedCall:
    """The request of a body; raises `InvalidRequestError` or `UnsupportedParameterError`."""
    prompt = parse_conversation(fields)
    delivery = parse_delivery(fields)
    has_logprobs = fields.boolean("logprobs")
    num_top = fields.integer("top_logprobs")
    if num_top and not has_logprobs:
        refuse("top_logprobs", "requires logprobs: true")
    max_tokens = parse_max_tokens(fields, default=None)
    request, names = parse_request(fields, request_id, (prompt,), max_tokens, num_top or 0)
    names["num_logprobs"] = "top_logprobs"
    return ParsedCall(
        request, delivery, lambda model: ChatResponseBuilder(model, has_logprobs), names
    )


def parse_conversation(fields: Fields) -> Chat:
    """`messages`, `add_generation_prompt` and `continue_final_message`."""
    messages = _parse_messages(fields)
    requested = fields.pop("add_generation_prompt")
    if requested is not None and not isinstance(requested, bool):
        refuse("add_generation_prompt", "must be true or false")
    return Chat(messages, requested, fields.boolean("continue_final_message"))


def _parse_messages(fields: Fields) -> tuple[ChatMessage, ...]:
    items = fields.items("messages")
    if items is None:
        refuse("messages", "is missing")
    return tuple(_parse_message(item, f"messages[{index}]") for index, item in enumerate(items))


def _parse_message(value: object, name: str) -> ChatMessage:
    fields = as_object(value, name)
    role = fields.text("role")
    if not role:
        refuse(f"{name}.role", "is missing")
    content = _parse_content(fields.pop("content"), f"{name}.content")
    fields.accept_only_neutral({"refusal": (), "tool_calls": ([],), "annotations": ([],)})
    fields.end()
    return ChatMessage(role, content)


def _parse_content(value: object, name: str) -> str:
    """The text of `content`: a string, or a list of text parts."""
    if isinstance(value, str):
        return text(value, name)
    if not isinstance(value, list):
        refuse(name, "must be a string or a list of text parts")
    return "".join(_parse_part(part, f"{name}[{index}]") for index, part in enumerate(value))


def _parse_part(value: object, name: str) -> str:
    fields = as_object(value, name)
    kind = fields.text("type")
    if kind != "text":
        refuse(f"{name}.type", f"is {kind!r}; this model reads text parts only")
    content = fields.text("text")
    fields.end()
    return content if content is not None else refuse(f"{name}.text", "is missing")


class ChatResponseBuilder:
    """Whole messages, or deltas of messages in a stream."""

    name: Final = "chat.completion"
    chunk_name: Final = "chat.completion.chunk"
    id_prefix: Final = "chatcmpl-"

    def __init__(self, model: ServedModel, has_logprobs: bool) -> None:
        self.model_name = model.name
        self._texts = TokenBytes(model.tokenizer) if has_logprobs else None

    def openings(self, index: int) -> Iterator[JSON]:
        """The role, once."""
        yield _delta(index, {"role": "assistant", "content": ""}, None, None)

    def chunks(self, index: int, update: Update) -> Iterator[JSON]:
        """The text with its tokens, then the finish reason."""
        logprobs = self._logprobs(update.tokens)
        if update.text or logprobs:
            yield _delta(index, {"content": update.text}, logprobs, None)
        if update.finish is not None:
            yield _delta(index, {}, None, finish_name(update.finish))

    def choice(self, index: int, answer: ChoiceAccumulator) -> JSON:
        """A whole message."""
        return {
            "index": index,
            "message": {"role": "assistant", "content": answer.text, "refusal": None},
            "logprobs": self._logprobs(answer.tokens),
            "finish_reason": finish_name(answer.finish),
        }

    def _logprobs(self, tokens: tuple[Token, ...] | list[Token]) -> JSON | None:
        if self._texts is None:
            return None
        return {"content": [_token(token, self._texts) for token in tokens], "refusal": None}


def _delta(index: int, delta: JSON, logprobs: JSON | None, reason: str | None) -> JSON:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}


def _token(token: Token, texts: TokenBytes) -> JSON:
    return {
        **_logprob(token.id, token.logprob, texts),
        "top_logprobs": [_logprob(*entry, texts) for entry in token.top_logprobs],
    }


def _logprob(token_id: int, logprob: float, texts: TokenBytes) -> JSON:
    raw = texts.raw(token_id)
    return {"token": raw.decode(errors="replace"), "logprob": logprob, "bytes": list(raw)}
