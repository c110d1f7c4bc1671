"""Declares the options of a generation: sampling, and the form of the answer."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter
from cyclopts.types import ExistingFile
from cyclopts.validators import Number

from runtime.errors import InvalidRequestError
from runtime.protocol.inference_types import Choice, JsonSchema, Regex, Sampling, StructuredOutput
from stagemesh.cli.options.option_types import NotNegative, between


@Parameter(name="*", group=Group("Sampling", sort_key=1))
@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingArguments:
    """How tokens are sampled."""

    temperature: Annotated[float, between(0, 100)] = 0.0
    """Randomness of sampling; 0 always takes the most likely token."""

    top_p: Annotated[float, Parameter(validator=Number(gt=0, lte=1))] = 1.0
    """Sample from the most likely tokens whose probabilities add up to this value."""

    top_k: NotNegative = 0
    """Sample from this number of most likely tokens; 0 is no limit."""

    min_p: Annotated[float, between(0, 1)] = 0.0
    """Exclude tokens less likely than this fraction of the most likely token's probability."""

    seed: Annotated[int | None, between(0, 2**64 - 1)] = None
    """Random seed; equal seeds give equal answers. [default: chosen by the server]"""

    presence_penalty: Annotated[float, between(-2, 2)] = 0.0
    """Subtracted from the logit of each token that the answer already contains."""

    frequency_penalty: Annotated[float, between(-2, 2)] = 0.0
    """Subtracted from a token's logit once per occurrence in the answer."""

    repetition_penalty: Annotated[float, Parameter(validator=Number(gt=0, lte=10))] = 1.0
    """Above 1, makes the tokens of the prompt and of the answer less likely."""

    def sampling(self) -> Sampling:
        """The client's parameters, which have the same names."""
        return Sampling(**asdict(self))


@Parameter(name="*", group=Group("Structured output", sort_key=2))
@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredArguments:
    """The form of the answer; at most one option may be given."""

    json_schema: ExistingFile | None = None
    """File with a JSON schema; the answer is a JSON document that is valid under it."""

    regex: str | None = None
    """Regular expression that the whole answer matches, in the syntax of Rust's regex crate."""

    choice: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)] = ()
    """One of the possible answers; repeat the option for each."""

    def structured_output(self) -> StructuredOutput | None:
        """The client's parameter; raises `InvalidRequestError` for several forms."""
        forms: list[StructuredOutput] = []
        if self.json_schema is not None:
            forms.append(JsonSchema(_read(self.json_schema)))
        if self.regex is not None:
            forms.append(Regex(self.regex))
        if self.choice:
            forms.append(Choice(self.choice))
        if len(forms) > 1:
            problem = "an answer has one form; give only one of the three"
            raise InvalidRequestError(field="--json-schema, --regex, --choice", problem=problem)
        return forms[0] if forms else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeError) as error:
        problem = f"{path} cannot be read: {error}"
        raise InvalidRequestError(field="--json-schema", problem=problem) from None


SAMPLING_DEFAULTS = SamplingArguments()
STRUCTURED_DEFAULTS = StructuredArguments()
