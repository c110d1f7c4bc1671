"""Parses the generation parameters that chat and completions share.

OpenAI's parameters that this server does not support are listed with their neutral values, which
are accepted.
"""

from dataclasses import dataclass
from typing import Final

from coordinator.api.http.json_reader import Fields, integer, refuse, text
from coordinator.api.http.response_format import parse_structured_output
from runtime.protocol.inference_types import (
    GenerationRequest,
    Prompt,
    Sampling,
    Scheduling,
)

# Field -> the values that mean the same as its absence.
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

# Fields of `GenerationRequest` that have another name at the HTTP API.
_FIELD_NAMES: Final = {
    "prompts": "prompt",
    "num_choices": "n",
}


@dataclass(frozen=True, slots=True)
class Delivery:
    """How the response is sent."""

    stream: bool
    include_usage: bool
    # Usage on every event instead of the last one only.
    continuous_usage: bool = False


def parse_delivery(fields: Fields) -> Delivery:
    """`stream` and `stream_options`."""
    stream = fields.boolean("stream")
    options = fields.nested("stream_options")
    if options is None:
        return Delivery(stream, include_usage=False)
    if not stream:
        refuse("stream_options", "requires stream: true")
    include_usage = options.boolean("include_usage")
    continuous_usage = options.boolean("continuous_usage_stats")
    if continuous_usage and not include_usage:
        refuse("stream_options.continuous_usage_stats", "requires include_usage: true")
    options.end()
    return Delivery(stream, include_usage, continuous_usage)


def parse_request(
    fields: Fields,
    request_id: str,
    prompts: tuple[Prompt, ...],
    max_tokens: int | None,
    num_logprobs: int,
) -> tuple[GenerationRequest, dict[str, str]]:
    """The request, and the names of its fields at the HTTP API where they differ.

    Reads all remaining fields; raises `UnsupportedParameterError` for an unknown one.
    """
    # Identifies an end user to the operator of a service; it has no effect.
    fields.text("user")
    structured_output, structured_name = parse_structured_output(fields)
    request = GenerationRequest(
        prompts=prompts,
        request_id=request_id,
        model=fields.text("model") or "",
        sampling=_parse_sampling(fields, num_logprobs),
        max_tokens=max_tokens,
        ignore_eos=fields.boolean("ignore_eos"),
        stop_token_ids=_parse_ids(fields, "stop_token_ids"),
        stop=_parse_stop(fields),
        include_stop=_parse_include_stop(fields),
        num_choices=_integer(fields, "n", default=1),
        min_tokens=_integer(fields, "min_tokens", default=0),
        structured_output=structured_output,
        scheduling=_parse_scheduling(fields),
    )
    fields.accept_only_neutral(NEUTRAL)
    fields.end()
    return request, {**_FIELD_NAMES, "structured_output": structured_name}


def parse_max_tokens(fields: Fields, default: int | None) -> int | None:
    """`max_tokens` or its newer name `max_completion_tokens`."""
    old, new = fields.integer("max_tokens"), fields.integer("max_completion_tokens")
    if None not in (old, new) and old != new:
        refuse("max_completion_tokens", f"is {new}, but max_tokens is {old}; send one of them")
    return next((value for value in (new, old) if value is not None), default)


def _parse_sampling(fields: Fields, num_logprobs: int) -> Sampling:
    """OpenAI's default of `temperature` is 1; the gRPC API's is 0, greedy."""
    return Sampling(
        temperature=_number(fields, "temperature", default=1.0),
        top_k=_integer(fields, "top_k", default=0),
        top_p=_number(fields, "top_p", default=1.0),
        min_p=_number(fields, "min_p", default=0.0),
        seed=fields.integer("seed"),
        num_logprobs=num_logprobs,
        presence_penalty=_number(fields, "presence_penalty", default=0.0),
        frequency_penalty=_number(fields, "frequency_penalty", default=0.0),
        repetition_penalty=_number(fields, "repetition_penalty", default=1.0),
        logit_bias=_parse_logit_bias(fields),
    )


def _parse_scheduling(fields: Fields) -> Scheduling:
    return Scheduling(
        priority=_integer(fields, "priority", default=0),
        ttft_target_seconds=fields.number("ttft_target_seconds"),
        tpot_target_seconds=fields.number("tpot_target_seconds"),
        cache_salt=fields.text("cache_salt") or "",
    )


def _number(fields: Fields, name: str, default: float) -> float:
    value = fields.number(name)
    return default if value is None else value


def _integer(fields: Fields, name: str, default: int) -> int:
    value = fields.integer(name)
    return default if value is None else value


def _parse_stop(fields: Fields) -> tuple[str, ...]:
    """`stop`: a text or a list of texts."""
    value = fields.pop("stop")
    if value is None or isinstance(value, str):
        return () if value is None else (text(value, "stop"),)
    if not isinstance(value, list):
        refuse("stop", "must be a string or a list of strings")
    return tuple(text(item, f"stop[{index}]") for index, item in enumerate(value))


def _parse_include_stop(fields: Fields) -> bool:
    """`include_stop`, or `include_stop_str_in_output`, which is vLLM's name."""
    include_stop = fields.boolean("include_stop")
    return fields.boolean("include_stop_str_in_output", default=include_stop)


def _parse_logit_bias(fields: Fields) -> tuple[tuple[int, float], ...]:
    """`logit_bias`: an object with token ids as names, which JSON has as strings."""
    biases = fields.nested("logit_bias")
    if biases is None:
        return ()
    pairs = []
    for name in biases.names():
        if not (name.isascii() and name.isdecimal() and len(name) < 20):
            refuse(f"logit_bias.{name[:100]}", "is not a token id")
        pairs.append((int(name), _number(biases, name, default=0.0)))
    return tuple(pairs)


def _parse_ids(fields: Fields, name: str) -> tuple[int, ...]:
    values = fields.items(name) or []
    return tuple(integer(value, f"{name}[{index}]") for index, value in enumerate(values))
