"""Reads the file that sets the step times of simulated workers (`--pace`).

The file is one JSON object. Times are those of the whole model; a stage takes its share of layers.
"""

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from runtime.errors import InvalidRequestError
from runtime.protocol.step import Step
from simulator.model.pipeline import SpeedChange, work_of
from simulator.model.stage_times import ModelTimes, linear_times, load_times

LINEAR_FIELDS = ("fixed", "per_token", "per_attention", "per_context")


@dataclass(frozen=True, slots=True)
class PacedModel:
    """Stage times with changes, counted from each stage's own first step.

    `noise` is the standard deviation of the logarithm of a factor on every time.
    """

    times: ModelTimes
    num_kv_blocks: int = 4096
    noise: float = 0.0
    changes: tuple[SpeedChange, ...] = ()
    _random: random.Random = field(default_factory=lambda: random.Random(0), repr=False)

    def stage_seconds(self, step: Step, stage: int, share: float, age_seconds: float) -> float:
        """Seconds that a stage with `share` of the layers takes for a step."""
        seconds = self.times.seconds(work_of(step)) * share
        if self.noise:
            seconds *= self._random.lognormvariate(-self.noise * self.noise / 2, self.noise)
        for change in self.changes:
            if change.stage == stage and age_seconds >= change.at_seconds:
                seconds *= change.factor
        return seconds


def read_pace(path: Path) -> PacedModel:
    """Reads the file. Raises `InvalidRequestError`, which names the field, if it is invalid."""
    try:
        fields = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        _refuse(path, f"cannot be read: {error}")
    if not isinstance(fields, dict):
        _refuse(path, "must be one JSON object")
    taken = _Fields(path, dict(fields))
    model = PacedModel(
        times=_times(taken).scaled(taken.number("scale", 1.0)),
        num_kv_blocks=int(taken.number("num_kv_blocks", 4096)),
        noise=taken.number("noise", 0.0),
        changes=_changes(taken),
    )
    taken.end()
    return model


def _times(fields: "_Fields") -> ModelTimes:
    hardware, linear = fields.take("hardware"), fields.take("linear")
    if (hardware is None) == (linear is None):
        fields.refuse("needs one of hardware and linear")
    if hardware is not None:
        return load_times(str(hardware))
    coefficients = fields.inside("linear", linear)
    values = {name: coefficients.number(name, 0.0) for name in LINEAR_FIELDS}
    coefficients.end()
    return linear_times(**values)


def _changes(fields: "_Fields") -> tuple[SpeedChange, ...]:
    changes = fields.take("changes") or []
    if not isinstance(changes, list):
        fields.refuse("changes must be a list")
    found = []
    for index, value in enumerate(changes):
        each = fields.inside(f"changes[{index}]", value)
        after_seconds = each.number("after_seconds", 0.0)
        found.append(
            SpeedChange(after_seconds, int(each.number("stage", 0)), each.number("factor", 1.0))
        )
        each.end()
    return tuple(found)


class _Fields:
    """The fields of one JSON object; a field that is never read is an error."""

    def __init__(self, path: Path, left: dict[str, Any], where: str = "") -> None:
        self._path = path
        self._left = left
        self._where = where

    def take(self, name: str) -> object:
        """Returns and removes a field's value; None if it is absent."""
        return self._left.pop(name, None)

    def number(self, name: str, default: float) -> float:
        """Returns and removes a non-negative number."""
        value = self._left.pop(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            self.refuse(f"{name} must be a number of 0 or more, and is {value!r}")
        return float(value)

    def inside(self, where: str, value: object) -> "_Fields":
        """Returns the fields of a nested object."""
        if not isinstance(value, Mapping):
            self.refuse(f"{where} must be an object")
        return _Fields(self._path, dict(value), f"{self._where}{where}.")

    def end(self) -> None:
        """Raises `InvalidRequestError` if a field was not read."""
        if self._left:
            self.refuse(f"{', '.join(sorted(self._left))} is unknown")

    def refuse(self, problem: str) -> NoReturn:
        """Raises InvalidRequestError."""
        _refuse(self._path, self._where + problem)


def _refuse(path: Path, problem: str) -> NoReturn:
    raise InvalidRequestError(field=f"paced model {path}", problem=problem)
