"""Parses structured outputs: OpenAI's `response_format` and vLLM's `structured_outputs`."""

import json
from typing import Final

from coordinator.api.http.json_reader import Fields, refuse, text
from runtime.protocol.inference_types import (
    JSON_OBJECT,
    Choice,
    JsonSchema,
    Regex,
    StructuredOutput,
)

# The two fields for a structured output; an error names the one that the client sent.
RESPONSE_FORMAT: Final = "response_format"
STRUCTURED_OUTPUTS: Final = "structured_outputs"


def parse_structured_output(fields: Fields) -> tuple[StructuredOutput | None, str]:
    """The structured output, and the name of the field that has it."""
    format_fields, extra_fields = fields.nested(RESPONSE_FORMAT), fields.nested(STRUCTURED_OUTPUTS)
    output = None if format_fields is None else _parse_response_format(format_fields)
    if extra_fields is None:
        return output, RESPONSE_FORMAT
    if output is not None:
        refuse(STRUCTURED_OUTPUTS, "cannot be sent with response_format; send one of them")
    return _parse_structured_outputs(extra_fields), STRUCTURED_OUTPUTS


def _parse_response_format(fields: Fields) -> StructuredOutput | None:
    kind = fields.text("type")
    output: StructuredOutput | None = None
    match kind:
        case "text":
            pass
        case "json_object":
            output = JSON_OBJECT
        case "json_schema":
            output = _parse_json_schema(fields)
        case _:
            problem = f"is {kind!r}; must be text, json_object or json_schema"
            refuse(f"{RESPONSE_FORMAT}.type", problem)
    fields.end()
    return output


def _parse_json_schema(fields: Fields) -> JsonSchema:
    """OpenAI's wrapper of a schema; `name`, `description` and `strict` have no effect."""
    wrapper = fields.nested("json_schema")
    if wrapper is None:
        refuse(f"{RESPONSE_FORMAT}.json_schema", "is missing")
    wrapper.text("name")
    wrapper.text("description")
    wrapper.boolean("strict")
    schema = _parse_schema(wrapper.pop("schema"), f"{RESPONSE_FORMAT}.json_schema.schema")
    wrapper.end()
    return schema


def _parse_structured_outputs(fields: Fields) -> StructuredOutput:
    """vLLM's field with one of `json`, `json_object`, `regex` and `choice`."""
    json_value, regex = fields.pop("json"), fields.text("regex")
    is_object, choice = fields.boolean("json_object"), fields.items("choice")
    fields.end()
    found: list[StructuredOutput] = []
    if json_value is not None:
        found.append(_parse_schema(json_value, f"{STRUCTURED_OUTPUTS}.json"))
    if regex is not None:
        found.append(Regex(regex))
    if choice is not None:
        name = f"{STRUCTURED_OUTPUTS}.choice"
        found.append(Choice(tuple(text(item, f"{name}[{i}]") for i, item in enumerate(choice))))
    if is_object:
        found.append(JSON_OBJECT)
    if len(found) != 1:
        refuse(STRUCTURED_OUTPUTS, "must have one of json, json_object, regex and choice")
    return found[0]


def _parse_schema(value: object, name: str) -> JsonSchema:
    """An object, or its JSON as a string."""
    if isinstance(value, str):
        return JsonSchema(text(value, name))
    if not isinstance(value, dict):
        refuse(name, "must be an object")
    try:
        schema = json.dumps(value, ensure_ascii=False)
    except RecursionError:
        refuse(name, "is nested too deeply")
    return JsonSchema(text(schema, name))
