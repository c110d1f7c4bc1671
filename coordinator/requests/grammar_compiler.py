"""Owns the way from a structured output to the grammar that the sampling rank follows.

A grammar that the matcher would not take is refused here, on its field, before it costs anything.
"""

import asyncio
import json
from typing import Final, NoReturn

from llguidance import LLMatcher

from runtime.errors import InvalidRequestError
from runtime.protocol.inference_types import Choice, JsonSchema, Regex, StructuredOutput

# As compiled; it travels with every opening of a slot, many of which share one message.
MAX_GRAMMAR_BYTES: Final = 1 << 15

# Without it models like to write spaces for ever. A schema's own "x-guidance" goes before it.
_JSON_STYLE: Final = {"x-guidance": {"whitespace_flexible": False}}


async def compile_grammar(output: StructuredOutput | None, *, has_eos: bool) -> str:
    """The grammar in llguidance's notation; empty for no structure at all.

    Raises `InvalidRequestError` for `structured_output`, with the reason; one is that without an
    end-of-sequence token (`has_eos`) nothing could say that an answer is complete.
    """
    if output is None:
        return ""
    if not has_eos:
        _refuse("needs a model with an end-of-sequence token")
    grammar = _notation(output)
    if len(grammar.encode()) > MAX_GRAMMAR_BYTES:
        _refuse(f"is too long; its grammar may have at most {MAX_GRAMMAR_BYTES} bytes")
    # Some take a while.
    is_wrong, messages = await asyncio.to_thread(LLMatcher.validate_grammar_with_warnings, grammar)
    if is_wrong:
        _refuse(f"cannot be used: {_reason(messages[0])}")
    return grammar


def _notation(output: StructuredOutput) -> str:
    match output:
        case JsonSchema(schema):
            return _schema_notation(schema)
        case Regex(pattern):
            return LLMatcher.grammar_from_regex(pattern)
        case Choice(texts):
            if not texts:
                _refuse("choice is empty; send at least one text")
            literals = (json.dumps(text, ensure_ascii=False) for text in texts)
            return LLMatcher.grammar_from_lark("start: " + " | ".join(literals))


def _schema_notation(schema: str) -> str:
    try:
        parsed = json.loads(schema)
    except RecursionError:
        _refuse("the schema is nested too deeply")
    except ValueError as error:
        _refuse(f"the schema is not JSON: {error}")
    if not isinstance(parsed, dict):
        _refuse("the schema must be a JSON object")
    return LLMatcher.grammar_from_json_schema(_JSON_STYLE | parsed)


def _reason(message: str) -> str:
    """What is wrong, in one line; the library draws the place of a regex's fault over several."""
    lines = [line.strip() for line in message.splitlines()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (errors or lines or [message])[0][:300]


def _refuse(problem: str) -> NoReturn:
    raise InvalidRequestError(field="structured_output", problem=problem)
