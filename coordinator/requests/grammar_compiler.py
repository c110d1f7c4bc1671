"""Compiles a structured output to the grammar that constrains sampling on the last stage.

A grammar that llguidance rejects is refused here, before the request is queued.
"""

import asyncio
import json
from typing import Final, NoReturn

from llguidance import LLMatcher

from runtime.errors import InvalidRequestError
from runtime.protocol.inference_types import Choice, JsonSchema, Regex, StructuredOutput

# Of the compiled grammar, which is sent with each opened slot; one message may open many slots.
MAX_GRAMMAR_BYTES: Final = 1 << 15

# Without it, models tend to generate endless spaces. A schema's own "x-guidance" has precedence.
_JSON_STYLE: Final = {"x-guidance": {"whitespace_flexible": False}}


async def compile_grammar(output: StructuredOutput | None, *, has_eos: bool) -> str:
    """The grammar in llguidance's notation; empty without a structured output.

    Raises `InvalidRequestError` with the field `structured_output`, also for a model without an
    end-of-sequence token (`has_eos` False), which could not end an answer.
    """
    if output is None:
        return ""
    if not has_eos:
        _refuse("needs a model with an end-of-sequence token")
    grammar = _notation(output)
    if len(grammar.encode()) > MAX_GRAMMAR_BYTES:
        _refuse(f"is too long; its grammar may have at most {MAX_GRAMMAR_BYTES} bytes")
    # In a thread: compiling a large grammar is slow.
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
    """The error in one line; llguidance marks the position in a regex over several lines."""
    lines = [line.strip() for line in message.splitlines()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (errors or lines or [message])[0][:300]


def _refuse(problem: str) -> NoReturn:
    raise InvalidRequestError(field="structured_output", problem=problem)
