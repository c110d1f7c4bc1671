"""Owns the options that say how an answer is drawn, for the commands that ask for one."""

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Group, Parameter
from cyclopts.validators import Number

from runtime.protocol.inference_types import Sampling
from stagemesh.cli.options.option_types import NotNegative, between


@Parameter(name="*", group=Group("Sampling", sort_key=1))
@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """How tokens are drawn."""

    temperature: Annotated[float, between(0, 100)] = 0.0
    """0 takes the most likely token each time."""

    top_p: Annotated[float, Parameter(validator=Number(gt=0, lte=1))] = 1.0
    """Keep the most likely tokens that together have this probability."""

    top_k: NotNegative = 0
    """Keep this many of the most likely tokens; 0 keeps all."""

    min_p: Annotated[float, between(0, 1)] = 0.0
    """Drop tokens less likely than this share of the most likely one."""

    seed: Annotated[int | None, between(0, 2**64 - 1)] = None
    """Same seed, same tokens. [default: chosen by the server]"""

    presence_penalty: Annotated[float, between(-2, 2)] = 0.0
    """Lowers the chance of every token that the answer has."""

    frequency_penalty: Annotated[float, between(-2, 2)] = 0.0
    """Lowers it once more for each time that the answer has it."""

    repetition_penalty: Annotated[float, Parameter(validator=Number(gt=0, lte=10))] = 1.0
    """Above 1 lowers the chance of every token of prompt and answer."""

    def sampling(self) -> Sampling:
        """The same in the client's words."""
        return Sampling(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            seed=self.seed,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
        )


SAMPLING_DEFAULTS = SamplingOptions()
