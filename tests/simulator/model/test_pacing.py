"""Files that set the step times of simulated workers."""

import json
from pathlib import Path
from typing import Any

import pytest

from runtime.errors import InvalidRequestError
from runtime.protocol.step import SequenceChunk, Step
from simulator.model.pacing import PacedModel, read_pace
from simulator.model.stage_times import load_times

DECODES = Step(0, chunks=tuple(SequenceChunk(slot, 10, (5,), sample=True) for slot in range(8)))
EXAMPLES = sorted((Path(__file__).parents[3] / "benchmarks" / "paced").glob("*.json"))


def pace_of(folder: Path, **fields: Any) -> PacedModel:
    path = folder / "pace.json"
    path.write_text(json.dumps(fields))
    return read_pace(path)


def test_pace_of_hardware_takes_a_stages_share_of_the_measured_time(tmp_path: Path) -> None:
    pace = pace_of(tmp_path, hardware="llama2-70b/h100-80gb/4", scale=2.0)
    whole = load_times("llama2-70b/h100-80gb/4").decode(8)
    seconds = pace.stage_seconds(DECODES, stage=0, share=0.25, age_seconds=0.0)
    assert seconds == pytest.approx(2.0 * whole / 4, rel=0.02)


def test_pace_linear_adds_up_and_changes_when_a_stage_is_old_enough(tmp_path: Path) -> None:
    changes = [{"stage": 1, "after_seconds": 5.0, "factor": 2.0}]
    linear = {"fixed": 0.01, "per_token": 0.001, "per_context": 1e-5}
    pace = pace_of(tmp_path, linear=linear, changes=changes)
    seconds = 0.01 + 0.008 + 80e-5
    assert pace.stage_seconds(DECODES, 1, 1.0, 4.9) == pytest.approx(seconds)
    assert pace.stage_seconds(DECODES, 1, 1.0, 5.0) == pytest.approx(2 * seconds)
    assert pace.stage_seconds(DECODES, 0, 1.0, 5.0) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "one of hardware and linear"),
        ({"hardware": "abacus"}, "abacus"),
        ({"linear": {"fixed": -1}}, "linear.fixed"),
        ({"linear": {"per_row": 1}}, "linear.per_row is unknown"),
        ({"linear": {}, "speed": 2}, "speed is unknown"),
        ({"linear": {}, "changes": [{"when": 3}]}, "changes[0].when"),
    ],
)
def test_pace_with_a_mistake_names_the_field(
    tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        pace_of(tmp_path, **fields)
    assert message in str(caught.value)


def test_pace_of_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        read_pace(tmp_path / "none.json")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_pace_examples_are_valid(path: Path) -> None:
    assert read_pace(path).stage_seconds(DECODES, 0, 0.25, 0.0) > 0
