"""The route /v1/completions: its parameters and the JSON of its responses."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from coordinator.api.http.json_reader import Fields, integer, refuse, text
from coordinator.api.http.request_parser import parse_delivery, parse_max_tokens, parse_request
from coordinator.api.http.response_builder import JSON, ChoiceAccumulator, ParsedCall, finish_name
from coordinator.output.detokenizer import PromptEcho
from coordinator.output.token_bytes import TokenBytes
from coordinator.tokenization.model_info import ServedModel
from runtime.protocol.inference_types import Prompt, PromptToken, Token, TokenIds, Update

# OpenAI's default at this route; chat has none.
_DEFAULT_MAX_TOKENS: Final = 16


def parse_completion(fields: Fields, request_id: str) -> ParsedCall:
    """The request of a body; raises `InvalidRequestError` or `UnsupportedParameterError`."""
    prompts = _parse_prompts(fields.pop("prompt"))
    delivery = parse_delivery(fields)
    echo = fields.boolean("echo")
    num_logprobs = fields.integer("logprobs")
    max_tokens = parse_max_tokens(fields, _DEFAULT_MAX_TOKENS)
    request, names = parse_request(fields, request_id, prompts, max_tokens, num_logprobs or 0)
    names |= {"num_logprobs": "logprobs", "num_prompt_logprobs": "logprobs"}
    if echo:
        sampling = replace(request.sampling, num_prompt_logprobs=num_logprobs)
        request = replace(request, sampling=sampling)
    return ParsedCall(
        request,
        delivery,
        lambda model: CompletionResponseBuilder(
            model, prompts if echo else (), request.num_choices, num_logprobs is not None
        ),
        names,
    )


def _parse_prompts(value: object) -> tuple[Prompt, ...]:
    """`prompt`: a string, token ids, or a list of either."""
    if isinstance(value, str):
        return (text(value, "prompt"),)
    if not isinstance(value, list):
        refuse("prompt", "must be a string, token ids, or a list of either")
    if value and isinstance(value[0], str):
        return tuple(text(item, f"prompt[{i}]") for i, item in enumerate(value))
    if value and isinstance(value[0], list):
        return tuple(_parse_token_ids(item, f"prompt[{i}]") for i, item in enumerate(value))
    return (_parse_token_ids(value, "prompt"),)


def _parse_token_ids(value: object, name: str) -> TokenIds:
    if not isinstance(value, list):
        refuse(name, "must be token ids, as the first of the list is")
    # One set of types: a Python loop over a million ids would block the event loop.
    if set(map(type, value)) - {int}:
        wrong = next(index for index, item in enumerate(value) if type(item) is not int)
        integer(value[wrong], f"{name}[{wrong}]")
    return TokenIds(tuple(value))


class CompletionResponseBuilder:
    """Whole texts, or pieces of text in a stream; with `echo` the prompts come first."""

    name: Final = "text_completion"
    chunk_name: Final = "text_completion"
    id_prefix: Final = "cmpl-"

    def __init__(
        self, model: ServedModel, echo: tuple[Prompt, ...], num_choices: int, has_logprobs: bool
    ) -> None:
        """`echo` holds the prompts, each with `num_choices` answers; it is empty without `echo`."""
        self.model_name = model.name
        self._tokenizer = model.tokenizer
        self._echo = echo
        self._num_choices = num_choices
        self._texts = TokenBytes(model.tokenizer) if has_logprobs else None
        self._offsets: dict[int, int] = {}
        # By choice, until the stream has sent the whole prompt.
        self._open: dict[int, PromptEcho] = {}

    def openings(self, index: int) -> Iterator[JSON]:
        """The echoed prompt, without what the answer may still change of its last character."""
        if self._echo:
            echo = self._open[index] = self._prompt_echo(index)
            yield _choice(index, echo.opening(), None, None)

    def chunks(self, index: int, update: Update) -> Iterator[JSON]:
        """The text with its tokens; the last one has the finish reason."""
        logprobs = self._logprobs(index, (*update.prompt_tokens, *update.tokens))
        reason = finish_name(update.finish)
        content = self._end_of_prompt(index, update) + update.text
        if content or logprobs or reason:
            yield _choice(index, content, logprobs, reason)

    def choice(self, index: int, answer: ChoiceAccumulator) -> JSON:
        """A whole text."""
        whole = answer.text
        if self._echo:
            echo = self._prompt_echo(index)
            echo.push([token.id for token in answer.tokens])
            whole = echo.opening() + echo.rest() + answer.text
        logprobs = self._logprobs(index, (*answer.prompt_tokens, *answer.tokens))
        return _choice(index, whole, logprobs, finish_name(answer.finish))

    def _prompt_echo(self, index: int) -> PromptEcho:
        match self._echo[index // self._num_choices]:
            case str() as prompt_text:
                return PromptEcho(self._tokenizer, (), prompt_text)
            case TokenIds(token_ids):
                return PromptEcho(self._tokenizer, token_ids)
            case other:
                raise AssertionError(other)  # `_parse_prompts` returns no chats

    def _end_of_prompt(self, index: int, update: Update) -> str:
        """The rest of the echoed prompt, returned with the first text after it."""
        echo = self._open.get(index)
        if echo is None:
            return ""
        echo.push([token.id for token in update.tokens])
        if not update.text and update.finish is None:
            return ""
        del self._open[index]
        return echo.rest()

    def _logprobs(self, index: int, tokens: Sequence[Token | PromptToken]) -> JSON | None:
        """`text_offset` is the number of characters before a token, by the tokens' own texts.

        The first token of an echoed prompt has no log-probabilities.
        """
        if self._texts is None:
            return None
        body: JSON = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        offset = self._offsets.get(index, 0)
        for token in tokens:
            name = self._texts.name(token.id)
            likeliest = None if token.logprob is None else {name: token.logprob}
            for token_id, logprob in token.top_logprobs:
                assert likeliest is not None
                likeliest.setdefault(self._texts.name(token_id), logprob)
            body["tokens"].append(name)
            body["token_logprobs"].append(token.logprob)
            body["top_logprobs"].append(likeliest)
            body["text_offset"].append(offset)
            offset += len(self._texts.raw(token.id).decode(errors="replace"))
        self._offsets[index] = offset
        return body


def _choice(index: int, content: str, logprobs: JSON | None, reason: str | None) -> JSON:
    return {"index": index, "text": content, "logprobs": logprobs, "finish_reason": reason}
