"""Structured outputs at both APIs: compiled, refused with the reason, failed during generation."""

from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from llguidance import LLMatcher

from coordinator.requests.grammar_compiler import MAX_GRAMMAR_BYTES, compile_grammar
from protos import inference_pb2, stage_pb2
from runtime.errors import InvalidRequestError
from runtime.protocol.inference_types import (
    JSON_OBJECT,
    Choice,
    JsonSchema,
    Regex,
    StructuredOutput,
)
from runtime.rpc.channels import error_from_rpc
from tests.coordinator.toy_mesh import collect, token_request, toy_mesh
from tests.coordinator.toy_model import toy_answer

PROMPT = (5, 6, 7)
SCHEMA = '{"type": "object", "properties": {"a": {"type": "integer"}}}'


def refusals() -> dict[str, tuple[StructuredOutput, str]]:
    return {
        "no_json": (JsonSchema("{"), "not JSON"),
        "no_object": (JsonSchema("[]"), "must be a JSON object"),
        "nested": (JsonSchema('{"a":' * 90_000 + "1" + "}" * 90_000), "nested too deeply"),
        "unknown_type": (JsonSchema('{"type": "list"}'), "Invalid type: list"),
        "unknown_key": (JsonSchema('{"not": {"type": "string"}}'), "Unimplemented keys"),
        "no_document": (JsonSchema('{"enum": []}'), "Unsatisfiable"),
        "open_class": (Regex("[a-z"), "unclosed character class"),
        "look_around": (Regex("(?=a)b"), "look-around"),
        "long": (Regex("a" * MAX_GRAMMAR_BYTES), "too long"),
        "no_choice": (Choice(()), "at least one text"),
    }


@pytest.mark.parametrize("name", refusals())
async def test_compile_invalid_output_is_refused_with_the_reason(name: str) -> None:
    output, reason = refusals()[name]
    with pytest.raises(InvalidRequestError, match=reason) as caught:
        await compile_grammar(output, has_eos=True)
    assert caught.value.field == "structured_output"
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "output",
    [JSON_OBJECT, JsonSchema(SCHEMA), Regex("a/b|\n"), Choice(("", 'q"\\/', "é\n"))],
    ids=["object", "schema", "regex", "choice"],
)
async def test_compile_gives_a_grammar_that_the_matcher_accepts(output: StructuredOutput) -> None:
    grammar = await compile_grammar(output, has_eos=True)
    assert LLMatcher.validate_grammar_with_warnings(grammar) == (False, [])


async def test_compile_for_a_model_without_end_of_sequence_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="end-of-sequence"):
        await compile_grammar(Regex("a"), has_eos=False)
    assert await compile_grammar(None, has_eos=False) == ""


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (inference_pb2.InferRequest(ignore_eos=True), "ignore_eos"),
        (inference_pb2.InferRequest(min_tokens=2), "min_tokens"),
        (
            inference_pb2.InferRequest(structured_output=inference_pb2.StructuredOutput(regex="(")),
            "structured_output",
        ),
    ],
    ids=["ignore_eos", "min_tokens", "regex"],
)
async def test_infer_invalid_structured_output_is_refused_with_its_field(
    change: inference_pb2.InferRequest, field: str, toy_folder: Path
) -> None:
    request = token_request(PROMPT)
    request.structured_output.regex = "w1"
    request.MergeFrom(change)
    async with toy_mesh(toy_folder) as mesh:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await collect(mesh.infer(request))
    code, message = error_from_rpc(caught.value)
    assert (code, message.partition(":")[0]) == ("invalid_request", field)


async def test_infer_grammar_reaches_the_slot_of_every_choice(toy_folder: Path) -> None:
    request = token_request(PROMPT)
    request.num_choices = 2
    request.structured_output.choice.texts.extend(("w1", "w2"))
    async with toy_mesh(toy_folder) as mesh:
        await collect(mesh.infer(request))
        samplings = [each for each in mesh.workers[1].stage.slots.samplings if each.grammar]
    assert [each.choice for each in samplings] == [0, 1]
    assert {each.grammar for each in samplings} == {'start: "w1" | "w2"'}
    assert {each.num_prompt_tokens for each in samplings} == {len(PROMPT)}


async def test_infer_grammar_that_fails_during_generation_ends_only_its_request(
    toy_folder: Path,
) -> None:
    def fail(result: stage_pb2.StepResult) -> None:
        result.sampled[0].problem = "the parser is too complex"

    async with toy_mesh(toy_folder) as mesh:
        await mesh.until_ready()
        other = mesh.infer(token_request((8, 9), max_tokens=40))
        await other.read()
        mesh.workers[1].stage.behaviour.running.clear()
        call = mesh.infer(token_request(PROMPT, max_tokens=40))
        await mesh.until(lambda state: state.num_running + state.num_waiting == 2)
        mesh.workers[1].stage.behaviour.running.set()
        # The next slot that gets a token.
        mesh.workers[1].stage.behaviour.corrupt = fail
        errors = []
        for each in (other, call):
            try:
                await collect(each)
            except grpc.aio.AioRpcError as error:
                errors.append(error_from_rpc(error))
        state = await mesh.until_idle()
    assert [code for code, _ in errors] == ["grammar"]
    assert "the parser is too complex" in errors[0][1]
    assert state.replicas[0].epoch.counter == 1


BODIES: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": {"type": "json"}}, "response_format.type", "must be text"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": 3}}},
        "response_format.json_schema.schema",
        "must be an object",
    ),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": {"type": "list"}},
            }
        },
        "response_format",
        "Invalid type",
    ),
    ({"structured_outputs": {"regex": "("}}, "structured_outputs", "unclosed group"),
    ({"structured_outputs": {}}, "structured_outputs", "one of json"),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "one of json"),
    ({"structured_outputs": {"choice": ["b", 3]}}, "structured_outputs.choice[1]", "a string"),
    (
        {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
        "structured_outputs",
        "response_format",
    ),
    ({"structured_outputs": {"regex": "a"}, "ignore_eos": True}, "ignore_eos", "structured"),
]


async def test_http_invalid_structured_output_is_refused_with_the_clients_field(
    toy_folder: Path,
) -> None:
    async with toy_mesh(toy_folder) as mesh, mesh.http() as client:
        for body, param, message in BODIES:
            response = await client.post("/v1/completions", json={"prompt": "w1", **body})
            error = response.json()["error"]
            assert (response.status_code, error["param"]) == (400, param), error
            assert message in error["message"]


@pytest.mark.parametrize(
    ("body", "grammar"),
    [
        ({"response_format": {"type": "text"}}, ""),
        ({"structured_outputs": {"regex": "ab*"}}, "ab*"),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, '"yes" | "no"'),
        ({"structured_outputs": {"json": SCHEMA}}, '"properties":{"a"'),
        ({"response_format": {"type": "json_object"}}, '"type":"object"'),
    ],
    ids=["text", "regex", "choice", "json", "json_object"],
)
async def test_http_structured_output_reaches_the_slot(
    body: dict[str, Any], grammar: str, toy_folder: Path
) -> None:
    async with toy_mesh(toy_folder) as mesh, mesh.http() as client:
        body = {"prompt": "w5 w6 w7", "max_tokens": 4, "temperature": 0, **body}
        response = await client.post("/v1/completions", json=body)
        sampling = mesh.workers[1].stage.slots.samplings[-1]
    expected = "".join(f" w{token_id}" for token_id in toy_answer(PROMPT, 4))
    assert response.json()["choices"][0]["text"] == expected  # fake stages ignore the grammar
    assert grammar in sampling.grammar
    assert bool(grammar) == bool(sampling.grammar)
