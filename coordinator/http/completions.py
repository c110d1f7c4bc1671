"""Owns /v1/completions: its parameters, and what its answers look like."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from coordinator.http.fields import Fields, integer, refuse, text
from coordinator.http.form import JSON, Answer, Call, finish_name
from coordinator.http.parameters import take_delivery, take_max_tokens, take_request
from coordinator.requests import Prompt, PromptToken, TextPrompt, TokenPrompt, Update
from coordinator.served_model import ServedModel
from coordinator.token_text import TokenTexts
from runtime.step import SampledToken

# OpenAI's default at this path, and only here.
_DEFAULT_MAX_TOKENS: Final = 16


def parse_completion(fields: Fields, request_id: str) -> Call:
    """What the body asks for."""
    prompts = _prompts(fields.take("prompt"))
    delivery = take_delivery(fields)
    echo = fields.boolean("echo")
    num_logprobs = fields.integer("logprobs")
    max_tokens = take_max_tokens(fields, _DEFAULT_MAX_TOKENS)
    request, names = take_request(fields, request_id, prompts, max_tokens, num_logprobs or 0)
    names |= {"num_logprobs": "logprobs", "num_prompt_logprobs": "logprobs"}
    if echo:
        sampling = replace(request.sampling, num_prompt_logprobs=num_logprobs)
        request = replace(request, sampling=sampling)
    return Call(
        request,
        delivery,
        lambda model: CompletionForm(
            model, prompts if echo else (), request.num_choices, num_logprobs is not None
        ),
        names,
    )


def _prompts(value: object) -> tuple[Prompt, ...]:
    """A string, token ids, or a list of either."""
    if isinstance(value, str):
        return (TextPrompt(text(value, "prompt")),)
    if not isinstance(value, list):
        refuse("prompt", "must be a string, token ids, or a list of either")
    if value and isinstance(value[0], str):
        return tuple(TextPrompt(text(item, f"prompt[{i}]")) for i, item in enumerate(value))
    if value and isinstance(value[0], list):
        return tuple(_token_prompt(item, f"prompt[{i}]") for i, item in enumerate(value))
    return (_token_prompt(value, "prompt"),)


def _token_prompt(value: object, name: str) -> TokenPrompt:
    if not isinstance(value, list):
        refuse(name, "must be token ids, as the first of the list is")
    # Types first: a loop over a million ids would hold up the event loop.
    if set(map(type, value)) - {int}:
        wrong = next(index for index, item in enumerate(value) if type(item) is not int)
        integer(value[wrong], f"{name}[{wrong}]")
    return TokenPrompt(tuple(value))


class CompletionForm:
    """Text, and pieces of text; the prompts of `echo` come first."""

    name: Final = "text_completion"
    chunk_name: Final = "text_completion"
    id_prefix: Final = "cmpl-"

    def __init__(
        self, model: ServedModel, echo: tuple[Prompt, ...], num_choices: int, has_logprobs: bool
    ) -> None:
        """`echo` are the prompts, each with `num_choices` answers, or nothing."""
        self.model_name = model.name
        self._tokenizer = model.tokenizer
        self._echo = echo
        self._num_choices = num_choices
        self._texts = TokenTexts(model.tokenizer) if has_logprobs else None
        self._offsets: dict[int, int] = {}

    def openings(self, index: int) -> Iterator[JSON]:
        """The echoed prompt."""
        if self._echo:
            yield _choice(index, self._prompt_text(index), None, None)

    def chunks(self, index: int, update: Update) -> Iterator[JSON]:
        """The text with its tokens, and the end with the last of it."""
        logprobs = self._logprobs(index, (*update.prompt_tokens, *update.tokens))
        reason = finish_name(update.finish)
        if update.text or logprobs or reason:
            yield _choice(index, update.text, logprobs, reason)

    def choice(self, index: int, answer: Answer) -> JSON:
        """One text."""
        whole = self._prompt_text(index) + answer.text
        logprobs = self._logprobs(index, (*answer.prompt_tokens, *answer.tokens))
        return _choice(index, whole, logprobs, finish_name(answer.finish))

    def _prompt_text(self, index: int) -> str:
        match self._echo[index // self._num_choices] if self._echo else None:
            case TextPrompt(prompt_text):
                return prompt_text
            case TokenPrompt(token_ids):
                return self._tokenizer.decode(token_ids)
            case _:
                return ""

    def _logprobs(self, index: int, tokens: Sequence[SampledToken | PromptToken]) -> JSON | None:
        """`text_offset` counts characters of the answer so far, by the tokens' own texts.

        The first token of an echoed prompt has no log-probabilities.
        """
        if self._texts is None:
            return None
        body: JSON = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        offset = self._offsets.get(index, 0)
        for token in tokens:
            name = self._texts.name(token.token_id)
            likeliest = None if token.logprob is None else {name: token.logprob}
            for token_id, logprob in zip(token.top_ids, token.top_logprobs, strict=True):
                assert likeliest is not None
                likeliest.setdefault(self._texts.name(token_id), logprob)
            body["tokens"].append(name)
            body["token_logprobs"].append(token.logprob)
            body["top_logprobs"].append(likeliest)
            body["text_offset"].append(offset)
            offset += len(self._texts.raw(token.token_id).decode(errors="replace"))
        self._offsets[index] = offset
        return body


def _choice(index: int, content: str, logprobs: JSON | None, reason: str | None) -> JSON:
    return {"index": index, "text": content, "logprobs": logprobs, "finish_reason": reason}
