"""Owns how a structured output is asked for over HTTP: OpenAI's way, and vLLM's for the rest."""

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

# Where a client may have said it; an error has to name the one that it used.
RESPONSE_FORMAT: Final = "response_format"
STRUCTURED_OUTPUTS: Final = "structured_outputs"


def take_structured_output(fields: Fields) -> tuple[StructuredOutput | None, str]:
    """What `response_format` or `structured_outputs` asks for, and the name of the field."""
    format_fields, extra_fields = fields.nested(RESPONSE_FORMAT), fields.nested(STRUCTURED_OUTPUTS)
    output = None if format_fields is None else _response_format(format_fields)
    if extra_fields is None:
        return output, RESPONSE_FORMAT
    if output is not None:
        refuse(STRUCTURED_OUTPUTS, "cannot be sent with response_format; send one of them")
    return _structured_outputs(extra_fields), STRUCTURED_OUTPUTS


def _response_format(fields: Fields) -> StructuredOutput | None:
    kind = fields.text("type")
    output: StructuredOutput | None = None
    match kind:
        case "text":
            pass
        case "json_object":
            output = JSON_OBJECT
        case "json_schema":
            output = _json_schema(fields)
        case _:
            problem = f"is {kind!r}; must be text, json_object or json_schema"
            refuse(f"{RESPONSE_FORMAT}.type", problem)
    fields.end()
    return output


def _json_schema(fields: Fields) -> JsonSchema:
    """OpenAI wraps the schema; `name` and `description` are for its models, `strict` always is."""
    wrapper = fields.nested("json_schema")
    if wrapper is None:
        refuse(f"{RESPONSE_FORMAT}.json_schema", "is missing")
    wrapper.text("name")
    wrapper.text("description")
    wrapper.boolean("strict")
    schema = _schema(wrapper.take("schema"), f"{RESPONSE_FORMAT}.json_schema.schema")
    wrapper.end()
    return schema


def _structured_outputs(fields: Fields) -> StructuredOutput:
    """vLLM's field: one of `json`, `json_object`, `regex` and `choice`."""
    json_value, regex = fields.take("json"), fields.text("regex")
    is_object, choice = fields.boolean("json_object"), fields.items("choice")
    fields.end()
    found: list[StructuredOutput] = []
    if json_value is not None:
        found.append(_schema(json_value, f"{STRUCTURED_OUTPUTS}.json"))
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


def _schema(value: object, name: str) -> JsonSchema:
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
