"""Compute time of a microbatch in a stage, from measured tables.

The table has whole-model times by batch; a stage takes its share of layers. Times are interpolated
linearly, and extrapolated beyond the outer points. A batch of prompts and decodes costs as if all
its rows were prompt rows, and 10 % more (the performance model of splitwise-sim).
"""

import csv
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from statistics import median

from runtime.errors import InvalidRequestError
from scheduler import StageCostModel, StepWork, guess_costs

MODELS = {"llama2-70b": (69e9, 80), "bloom-176b": (176e9, 70)}
"""Weights and layers, by the first part of the hardware's name."""
BYTES_PER_WEIGHT = 2
DEVICE_KIND = "cuda"


def num_layers_of(hardware: str) -> int:
    """Layers of the model that `hardware` names, which `load_times` knows."""
    return MODELS[hardware.partition("/")[0]][1]


def guess_stages(hardware: str, shares: Sequence[float]) -> tuple[StageCostModel, ...]:
    """Returns the estimated costs of stages with these shares of the model, as at an epoch's start.

    `hardware` is a name that `load_times` knows, as `llama2-70b/h100-80gb/4`; the weights of a
    stage are divided by its number of devices.
    """
    model, _, num_devices = hardware.split("/")
    num_weights, _ = MODELS[model]
    return tuple(
        guess_costs(
            DEVICE_KIND,
            int(BYTES_PER_WEIGHT * num_weights * share / int(num_devices)),
            BYTES_PER_WEIGHT,
            round(num_layers_of(hardware) * share),
        )
        for share in shares
    )


MIXED_SURCHARGE = 1.1
"""Factor on a batch of prompts and decodes relative to prompts only (splitwise-sim)."""


class Curve:
    """A piecewise linear function through points, extrapolated from the outer two of each end."""

    def __init__(self, points: Mapping[float, float]) -> None:
        self._xs = sorted(points)
        self._ys = [points[x] for x in self._xs]

    def scaled(self, factor: float) -> "Curve":
        """Returns the curve with all values multiplied by `factor`."""
        return Curve({x: factor * y for x, y in zip(self._xs, self._ys, strict=True)})

    def __call__(self, x: float) -> float:
        right = min(max(bisect_left(self._xs, x), 1), len(self._xs) - 1)
        x0, x1 = self._xs[right - 1], self._xs[right]
        y0, y1 = self._ys[right - 1], self._ys[right]
        return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


@dataclass(frozen=True, slots=True)
class ModelTimes:
    """Whole-model seconds for prompt rows and decodes, and the addition for attention.

    `attention` is a function of sum(2Lx + x^2) over prompt chunks of x tokens at position L: the
    cost of one long prompt beyond that of as many rows of short ones. `context` is seconds per
    position before a decode.
    """

    prompt: Curve
    decode: Curve
    attention: Curve
    context: float

    def seconds(self, work: StepWork) -> float:
        """Seconds that the whole model takes for a microbatch."""
        num_prompt_tokens = work.num_tokens - work.num_decodes
        context = self.context * work.decode_context
        if num_prompt_tokens == 0:
            return self.decode(max(1, work.num_decodes)) + context
        surcharge = MIXED_SURCHARGE if work.num_decodes else 1.0
        rows = self.prompt(work.num_tokens) * surcharge
        return max(rows, self.decode(work.num_decodes)) + context + self._attention(work)

    def scaled(self, factor: float) -> "ModelTimes":
        """Returns times that are all multiplied by `factor`."""
        return ModelTimes(
            self.prompt.scaled(factor),
            self.decode.scaled(factor),
            self.attention.scaled(factor),
            factor * self.context,
        )

    def _attention(self, work: StepWork) -> float:
        return max(0.0, self.attention(work.prefill_attention))


def load_times(name: str) -> ModelTimes:
    """The times of one row group of the table, named as `llama2-70b/h100-80gb/4`.

    The last part is the number of GPUs of a stage (tensor parallelism). Raises InvalidRequestError.
    """
    groups = _read_groups()
    if name not in groups:
        known = ", ".join(sorted(groups))
        raise InvalidRequestError(
            field="--hardware", problem=f"{name!r} is unknown; use one of {known}"
        )
    batches, singles = groups[name]
    prompt: dict[float, float] = {
        size * batch: times[0] for (size, batch), times in batches.items()
    }
    decode: dict[float, float] = {batch: times[1] for (_, batch), times in batches.items()}
    # A batch of one token is a decode: the lower end of the curve for chunks.
    prompt[1] = decode[1]
    prompt |= {size: times[0] for size, times in singles.items() if size <= 512}
    rows = Curve(prompt)
    attention = {0.0: 0.0} | {
        float(size) ** 2: max(0.0, times[0] - rows(size))
        for size, times in singles.items()
        if size > 512
    }
    shortest, longest = min(singles), max(singles)
    context = (singles[longest][1] - singles[shortest][1]) / (longest - shortest)
    return ModelTimes(rows, Curve(decode), Curve(attention), max(0.0, context))


def linear_times(
    fixed: float, per_token: float, per_attention: float, per_context: float
) -> ModelTimes:
    """Linear times in seconds: a fixed part, and an addition per row, attention and context."""
    rows = Curve({0.0: fixed, 1.0: fixed + per_token})
    return ModelTimes(rows, rows, Curve({0.0: 0.0, 1.0: per_attention}), per_context)


_Times = tuple[float, float]
_Group = tuple[dict[tuple[int, int], _Times], dict[int, _Times]]


def _read_groups() -> dict[str, _Group]:
    """Batches of 512-token prompts and single prompts, by name; seconds for prompt and token."""
    text = (resources.files("simulator") / "data" / "splitwise_times.csv").read_text()
    groups: defaultdict[str, _Group] = defaultdict(lambda: ({}, {}))
    for row in csv.DictReader(text.splitlines()):
        name = f"{row['model']}/{row['hardware']}/{row['tensor_parallel']}"
        size, batch = int(row["prompt_size"]), int(row["batch_size"])
        times = (float(row["prompt_ms"]) / 1000, float(row["token_ms"]) / 1000)
        batches, singles = groups[name]
        if batch == 1:
            singles[size] = times
        if size == 512:
            batches[size, batch] = times
    for batches, _ in groups.values():
        _drop_failed(batches)
    return dict(groups)


def _drop_failed(batches: dict[tuple[int, int], _Times]) -> None:
    """Removes larger batches that took less time than smaller ones: incomplete measurements."""
    typical = median(times[0] / batch for (_, batch), times in batches.items())
    for key, times in list(batches.items()):
        if times[0] < 0.5 * typical * key[1]:
            del batches[key]
