"""Owns the generation parameters that chat and completions share, from JSON to a request.

What OpenAI knows and this server does not offer is listed here, with the values that ask for
nothing.
"""

from dataclasses import dataclass
from typing import Final

from coordinator.api.http.json_reader import Fields, integer, refuse, text
from coordinator.api.http.response_format import take_structured_output
from runtime.protocol.inference_types import (
    GenerationRequest,
    Prompt,
    Sampling,
    Scheduling,
)

# Field -> the values that mean what its absence means.
NEUTRAL: Final[dict[str, tuple[object, ...]]] = {
    "audio": (),
    "best_of": (1,),
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "prompt_logprobs": (0,),
    "reasoning_effort": ("none",),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "web_search_options": (),
}

# Fields of `GenerationRequest` that have another name at this API.
_FIELD_NAMES: Final = {
    "prompts": "prompt",
    "num_choices": "n",
}


@dataclass(frozen=True, slots=True)
class Delivery:
    """How a client wants its answer sent."""

    stream: bool
    include_usage: bool
    # On every event, not the last alone.
    continuous_usage: bool = False


def take_delivery(fields: Fields) -> Delivery:
    """`stream` and `stream_options`."""
    stream = fields.boolean("stream")
    options = fields.nested("stream_options")
    if options is None:
        return Delivery(stream, include_usage=False)
    if not stream:
        refuse("stream_options", "means nothing without stream: true")
    include_usage = options.boolean("include_usage")
    continuous_usage = options.boolean("continuous_usage_stats")
    if continuous_usage and not include_usage:
        refuse("stream_options.continuous_usage_stats", "means nothing without include_usage: true")
    options.end()
    return Delivery(stream, include_usage, continuous_usage)


def take_request(
    fields: Fields,
    request_id: str,
    prompts: tuple[Prompt, ...],
    max_tokens: int | None,
    num_logprobs: int,
) -> tuple[GenerationRequest, dict[str, str]]:
    """What is left of the body, and how fields of the request are called at this API.

    Raises `UnsupportedParameterError` for what means nothing here.
    """
    # Names the end user for whoever runs a service; it changes no answer.
    fields.text("user")
    structured_output, structured_name = take_structured_output(fields)
    request = GenerationRequest(
        prompts=prompts,
        request_id=request_id,
        model=fields.text("model") or "",
        sampling=_take_sampling(fields, num_logprobs),
        max_tokens=max_tokens,
        ignore_eos=fields.boolean("ignore_eos"),
        stop_token_ids=_take_ids(fields, "stop_token_ids"),
        stop=_take_stop(fields),
        include_stop=_take_include_stop(fields),
        num_choices=_take_integer(fields, "n", default=1),
        min_tokens=_take_integer(fields, "min_tokens", default=0),
        structured_output=structured_output,
        scheduling=_take_scheduling(fields),
    )
    fields.refuse_unsupported(NEUTRAL)
    fields.end()
    return request, {**_FIELD_NAMES, "structured_output": structured_name}


def take_max_tokens(fields: Fields, default: int | None) -> int | None:
    """`max_tokens`, or `max_completion_tokens`, its newer name."""
    old, new = fields.integer("max_tokens"), fields.integer("max_completion_tokens")
    if None not in (old, new) and old != new:
        refuse("max_completion_tokens", f"is {new}, but max_tokens is {old}; send one of them")
    return next((value for value in (new, old) if value is not None), default)


def _take_sampling(fields: Fields, num_logprobs: int) -> Sampling:
    """OpenAI's default for `temperature` is 1, not greedy."""
    return Sampling(
        temperature=_take_number(fields, "temperature", default=1.0),
        top_k=_take_integer(fields, "top_k", default=0),
        top_p=_take_number(fields, "top_p", default=1.0),
        min_p=_take_number(fields, "min_p", default=0.0),
        seed=fields.integer("seed"),
        num_logprobs=num_logprobs,
        presence_penalty=_take_number(fields, "presence_penalty", default=0.0),
        frequency_penalty=_take_number(fields, "frequency_penalty", default=0.0),
        repetition_penalty=_take_number(fields, "repetition_penalty", default=1.0),
        logit_bias=_take_logit_bias(fields),
    )


def _take_scheduling(fields: Fields) -> Scheduling:
    return Scheduling(
        priority=_take_integer(fields, "priority", default=0),
        ttft_target_seconds=fields.number("ttft_target_seconds"),
        tpot_target_seconds=fields.number("tpot_target_seconds"),
        cache_salt=fields.text("cache_salt") or "",
    )


def _take_number(fields: Fields, name: str, default: float) -> float:
    value = fields.number(name)
    return default if value is None else value


def _take_integer(fields: Fields, name: str, default: int) -> int:
    value = fields.integer(name)
    return default if value is None else value


def _take_stop(fields: Fields) -> tuple[str, ...]:
    """One text, or a list of them."""
    value = fields.take("stop")
    if value is None or isinstance(value, str):
        return () if value is None else (text(value, "stop"),)
    if not isinstance(value, list):
        refuse("stop", "must be a string or a list of strings")
    return tuple(text(item, f"stop[{index}]") for index, item in enumerate(value))


def _take_include_stop(fields: Fields) -> bool:
    """Also under the name that vLLM's clients send."""
    mine = fields.boolean("include_stop")
    return fields.boolean("include_stop_str_in_output", default=mine)


def _take_logit_bias(fields: Fields) -> tuple[tuple[int, float], ...]:
    """An object of token ids, which JSON wants as strings, and numbers."""
    biases = fields.nested("logit_bias")
    if biases is None:
        return ()
    pairs = []
    for name in biases.names():
        if not (name.isascii() and name.isdecimal() and len(name) < 20):
            refuse(f"logit_bias.{name[:100]}", "is not a token id")
        pairs.append((int(name), _take_number(biases, name, default=0.0)))
    return tuple(pairs)


def _take_ids(fields: Fields, name: str) -> tuple[int, ...]:
    values = fields.items(name) or []
    return tuple(integer(value, f"{name}[{index}]") for index, value in enumerate(values))
