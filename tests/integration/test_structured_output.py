"""Answers with a structure: the same in every split, for every choice, and after preemption."""

import json
import re
from dataclasses import replace

import pytest

from runtime.protocol.inference_types import StructuredOutput
from stagemesh import (
    Choice,
    FinishReason,
    GenerationRequest,
    JsonSchema,
    Regex,
    Sampling,
    StagemeshRpcError,
    TokenIds,
)
from tests.integration.processes import Mesh

pytestmark = pytest.mark.integration

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "tags"],
    "additionalProperties": False,
}
OUTPUTS: dict[str, StructuredOutput] = {
    "schema": JsonSchema(json.dumps(SCHEMA)),
    "regex": Regex(r"[0-9]{3}-[a-f]{2,4}"),
    "choice": Choice(("the first stage", "the last stage", "neither")),
}
PROMPT = TokenIds(tuple(range(5, 45)))
BASE = GenerationRequest(
    prompts=(PROMPT,), max_tokens=100, sampling=Sampling(temperature=0.9, seed=7)
)
_drawn: dict[str, list[str]] = {}


def assert_has_structure(name: str, text: str) -> None:
    match name:
        case "schema":
            document = json.loads(text)
            assert sorted(document) == ["name", "tags"]
            assert set(document["tags"]) <= {"a", "b"}
        case "regex":
            assert re.fullmatch(r"[0-9]{3}-[a-f]{2,4}", text)
        case _:
            assert text in ("the first stage", "the last stage", "neither")


def texts_of(mesh: Mesh, request: GenerationRequest) -> list[str]:
    """One text for each choice; all of them are complete."""
    texts = [""] * request.num_choices
    for update in mesh.ask(request).updates:
        texts[update.choice] += update.text
        assert update.finish_reason in (None, FinishReason.STOP)
    return texts


@pytest.mark.parametrize("name", OUTPUTS)
def test_structure_holds_for_every_choice_and_is_the_same_in_every_split_and_batch(
    name: str, mesh: Mesh
) -> None:
    request = replace(BASE, structured_output=OUTPUTS[name], num_choices=3)
    texts = texts_of(mesh, request)
    for text in texts:
        assert_has_structure(name, text)
    assert texts == _drawn.setdefault(name, texts)
    first = texts_of(mesh, replace(request, num_choices=1))
    assert first == texts[:1]


def test_structure_cut_by_max_tokens_is_a_beginning_of_one(pair: Mesh) -> None:
    request = replace(BASE, structured_output=OUTPUTS["schema"], max_tokens=3)
    answers = pair.ask(request)
    assert answers.end().finish_reason is FinishReason.LENGTH
    assert '{"name":"'.startswith(answers.text()[:9])


def test_structure_after_preemption_is_the_same(preempting_pair: Mesh) -> None:
    """Sequences lose their blocks to others and are computed again."""
    prompts = tuple(TokenIds(tuple(range(n, n + 40))) for n in range(5, 13))
    output = JsonSchema(
        json.dumps({"type": "array", "items": {"enum": ["one", "two"]}, "minItems": 9})
    )
    request = replace(BASE, structured_output=output, max_tokens=90)
    together = preempting_pair.ask(replace(request, prompts=prompts))
    alone = [preempting_pair.ask(replace(request, prompts=(prompt,))).text() for prompt in prompts]
    assert [together.text(index) for index in range(len(prompts))] == alone


def test_structure_too_complex_on_the_way_fails_alone(pair: Mesh) -> None:
    """Whatever the matcher gives up on is its sender's error, and the mesh serves on."""
    hard = Regex(r"(.*[ab].{20}){30}x(.*[cd].{30}){30}y")
    try:
        answers = pair.ask(replace(BASE, structured_output=hard))
    except StagemeshRpcError as error:
        assert error.code == "grammar"  # noqa: PT017 - either end is right
    else:
        assert answers.end().finish_reason is FinishReason.LENGTH
    assert texts_of(pair, replace(BASE, structured_output=OUTPUTS["choice"]))
    assert pair.state().replicas[0].epoch == 1
