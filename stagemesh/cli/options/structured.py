"""Owns the options that say what form an answer has to have."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter
from cyclopts.types import ExistingFile

from runtime.errors import InvalidRequestError
from runtime.protocol.inference_types import Choice, JsonSchema, Regex, StructuredOutput


@Parameter(name="*", group=Group("Structured output", sort_key=2))
@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOptions:
    """The form of the answer; at most one of them."""

    json_schema: ExistingFile | None = None
    """A file with a JSON schema: the answer is a document that it accepts."""

    regex: str | None = None
    """A pattern, in the syntax of Rust's regex crate, that the whole answer matches."""

    choice: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)] = ()
    """A text that the answer may be; give it several times for several."""

    def structured_output(self) -> StructuredOutput | None:
        """The same in the client's words; raises `InvalidRequestError` for several forms."""
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


STRUCTURED_DEFAULTS = StructuredOptions()
