"""One JSON file of a model folder, read field by field with every value checked.

Owns the wording of what is wrong with a field. Knows no model: which fields there are and what they
mean is `runtime/model_config/model_config.py`.
"""

import json
from pathlib import Path
from typing import NoReturn, TypeVar, cast

from runtime.errors import ModelConfigError

_Item = TypeVar("_Item")

_MAX_SIZE = 2**24
_MAX_FLOAT = 1e30


class ConfigFields:
    """A JSON object; messages name it as `where`. An invalid value raises `ModelConfigError`.

    A field that is absent or null takes its default; without a default it is an error.
    """

    def __init__(self, folder: Path, where: str, values: dict[str, object]) -> None:
        self.folder = folder
        self.where = where
        self.values = values

    def fail(self, problem: str) -> NoReturn:
        """Raises `ModelConfigError` with folder and file before `problem`."""
        raise ModelConfigError(folder=str(self.folder), problem=f"{self.where}: {problem}")

    def required(self, name: str, default: object) -> object:
        """The raw value of a field."""
        value = self.values.get(name)
        if value is not None:
            return value
        if default is None:
            self.fail(f"`{name}` is missing")
        return default

    def integer(
        self, name: str, default: int | None = None, *, least: int = 1, most: int = _MAX_SIZE
    ) -> int:
        """An integer from `least` to `most`."""
        value = self.required(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            self.fail(f"`{name}` must be a whole number from {least} to {most}, not {value!r}")
        return value

    def positive(self, name: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self.required(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            self.fail(f"`{name}` must be a number, not {value!r}")
        if not 0 < value <= _MAX_FLOAT:
            self.fail(f"`{name}` must be a positive number, not {value!r}")
        return float(value)

    def flag(self, name: str) -> bool:
        """True or false; false by default."""
        value = self.values.get(name)
        if value is None:
            return False
        if not isinstance(value, bool):
            self.fail(f"`{name}` must be true or false, not {value!r}")
        return value

    def choice(self, name: str, default: str, known: tuple[str, ...]) -> str:
        """One of the strings in `known`."""
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, str) or value not in known:
            self.fail(f"`{name}` {value!r} is not supported; supported: {', '.join(known)}")
        return value

    def integer_or_none(self, name: str) -> int | None:
        """As `integer`; None if the field is absent or null."""
        return None if self.values.get(name) is None else self.integer(name)

    def positive_or_none(self, name: str) -> float | None:
        """As `positive`; None if the field is absent or null."""
        return None if self.values.get(name) is None else self.positive(name)

    def section(self, name: str) -> "ConfigFields":
        """The fields of a nested object; no fields if it is absent."""
        values = self.values.get(name) or {}
        if not isinstance(values, dict):
            self.fail(f"`{name}` must be an object, not {values!r}")
        return ConfigFields(self.folder, f"{self.where}, {name}", values)

    def items(self, name: str, kind: type[_Item], num_items: int) -> list[_Item]:
        """A list of at least `num_items` values of one type."""
        value = self.required(name, None)
        if not isinstance(value, list) or len(value) < num_items:
            self.fail(f"`{name}` must be a list of {num_items} items, not {value!r}")
        for item in value:
            if type(item) is not kind:
                self.fail(f"`{name}` must hold values of type {kind.__name__}, not {item!r}")
        return cast("list[_Item]", value)

    def positives(self, name: str, num_items: int) -> tuple[float, ...]:
        """A list of exactly `num_items` positive numbers."""
        values = self.required(name, None)
        if not isinstance(values, list) or len(values) != num_items:
            self.fail(f"`{name}` must be a list of {num_items} numbers, not {values!r}")
        numbers = ConfigFields(
            self.folder, self.where, {f"{name}[{i}]": value for i, value in enumerate(values)}
        )
        return tuple(numbers.positive(item) for item in numbers.values)

    def token_ids(self, name: str, default: int | None, vocab_size: int) -> tuple[int, ...]:
        """An id, a list of ids or null; an absent field takes the default, null does not."""
        value = self.values.get(name, default)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        for token_id in ids:
            if not isinstance(token_id, int) or isinstance(token_id, bool):
                self.fail(f"`{name}` must hold token ids, not {token_id!r}")
            if not 0 <= token_id < vocab_size:
                self.fail(f"`{name}` {token_id} is outside the vocabulary of {vocab_size}")
        return tuple(cast("list[int]", ids))


def read_config_fields(folder: Path, name: str) -> ConfigFields:
    """The object in `folder / name`; raises `ModelConfigError` if there is none."""
    try:
        values = json.loads((folder / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelConfigError(folder=str(folder), problem=f"there is no {name}") from None
    except (OSError, ValueError, RecursionError) as exc:
        raise ModelConfigError(folder=str(folder), problem=f"{name} cannot be read: {exc}") from exc
    if not isinstance(values, dict):
        raise ModelConfigError(folder=str(folder), problem=f"{name} is not a JSON object")
    return ConfigFields(folder, name, values)
