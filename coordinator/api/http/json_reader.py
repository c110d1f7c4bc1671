"""Reads JSON bodies field by field, each with its type; a field that was not read is refused.

Written by hand because errors keep OpenAI's shape: `param` is the path of the field at fault, an
unknown field has a code of its own, and `null` means the same as an absent field.
"""

import asyncio
import json
import re
from collections.abc import Mapping
from typing import Final, NoReturn

from starlette.requests import Request

from runtime.errors import (
    InvalidRequestError,
    RequestTooLargeError,
    SlowRequestError,
    UnsupportedMediaTypeError,
    UnsupportedParameterError,
)

BODY_SECONDS: Final = 30.0

# Lists and objects in a body: four times those of the longest conversation, parsed in about 10 ms.
MAX_CONTAINERS: Final = 1 << 16
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)

_MAX_INTEGER: Final = 2**64
_KINDS: Final = {bool: "true or false", str: "a string", list: "a list", dict: "an object"}


class Fields:
    """One JSON object; `null` means the same as an absent field."""

    def __init__(self, values: Mapping[str, object], path: str = "") -> None:
        """`path` is the prefix of field names in errors, such as `messages[0].`."""
        self._values = dict(values)
        self._path = path

    def pop(self, name: str) -> object:
        """The field's value as JSON has it; the field counts as read."""
        return self._values.pop(name, None)

    def names(self) -> list[str]:
        """The fields that have not been read yet."""
        return list(self._values)

    def boolean(self, name: str, *, default: bool = False) -> bool:
        """A boolean."""
        value = self.pop(name)
        if value is None:
            return default
        return value if isinstance(value, bool) else self._refuse_kind(name, bool)

    def integer(self, name: str) -> int | None:
        """A whole number that fits 64 bits."""
        value = self.pop(name)
        return None if value is None else integer(value, self._path + name)

    def number(self, name: str) -> float | None:
        """A number."""
        value = self.pop(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            refuse(self._path + name, "must be a number")
        try:
            return float(value)
        except OverflowError:
            refuse(self._path + name, "is too large")

    def text(self, name: str) -> str | None:
        """A string."""
        value = self.pop(name)
        return None if value is None else text(value, self._path + name)

    def items(self, name: str) -> list[object] | None:
        """A list of anything."""
        value = self.pop(name)
        if value is None:
            return None
        return value if isinstance(value, list) else self._refuse_kind(name, list)

    def nested(self, name: str) -> "Fields | None":
        """An object inside this one; the caller calls its `end` as well."""
        value = self.pop(name)
        return None if value is None else as_object(value, self._path + name)

    def accept_only_neutral(self, neutral: Mapping[str, tuple[object, ...]]) -> None:
        """Reads fields that are not supported; each must have one of its neutral values."""
        for name, values in neutral.items():
            value = self.pop(name)
            if value is not None and value not in values:
                hint = " or ".join(json.dumps(value) for value in values)
                problem = f"is not supported; leave it out{f' or send {hint}' if hint else ''}"
                raise UnsupportedParameterError(field=self._path + name, problem=problem)

    def end(self) -> None:
        """Raises `UnsupportedParameterError` for a field that was not read."""
        for name, value in self._values.items():
            if value is not None:
                problem = "is not a known parameter"
                raise UnsupportedParameterError(field=self._path + name[:100], problem=problem)

    def _refuse_kind(self, name: str, kind: type) -> NoReturn:
        refuse(self._path + name, f"must be {_KINDS[kind]}")


def refuse(name: str, problem: str) -> NoReturn:
    """Raises `InvalidRequestError`."""
    raise InvalidRequestError(field=name, problem=problem)


def integer(value: object, name: str) -> int:
    """`value` if it is a whole number that fits 64 bits."""
    if isinstance(value, bool) or not isinstance(value, int):
        refuse(name, "must be a whole number")
    return value if abs(value) < _MAX_INTEGER else refuse(name, "does not fit 64 bits")


def text(value: object, name: str) -> str:
    """`value` if it is a string that UTF-8 can encode."""
    if not isinstance(value, str):
        refuse(name, "must be a string")
    try:
        value.encode()
    except UnicodeEncodeError:
        refuse(name, "has half of a surrogate pair, which is no character")
    return value


def as_object(value: object, name: str) -> Fields:
    """The fields of `value` if it is an object."""
    if not isinstance(value, dict):
        refuse(name, "must be an object")
    return Fields(value, f"{name}.")


async def read_fields(request: Request, max_bytes: int) -> Fields:
    """The body's fields.

    Raises `UnsupportedMediaTypeError`, `RequestTooLargeError`, `SlowRequestError`, or
    `InvalidRequestError` for a body that is not a JSON object.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise UnsupportedMediaTypeError(actual=kind[:100])
    body = await _read_body(request, max_bytes)
    if _num_containers(body) > MAX_CONTAINERS:
        refuse("body", f"has more than {MAX_CONTAINERS:,} lists and objects")
    try:
        value = json.loads(body, parse_constant=_refuse_constant)
    except RecursionError:
        refuse("body", "is nested too deeply")
    except ValueError as error:
        refuse("body", f"is not JSON: {error}")
    if not isinstance(value, dict):
        refuse("body", "must be a JSON object")
    return Fields(value)


def _num_containers(body: bytes) -> int:
    """Lists and objects in a body; an upper bound where it is at most `MAX_CONTAINERS`.

    Their creation dominates the time of JSON parsing, which blocks the event loop.
    """
    num_brackets = body.count(b"[") + body.count(b"{")
    if num_brackets <= MAX_CONTAINERS:
        return num_brackets
    outside = _STRING.sub(b"", body)
    return outside.count(b"[") + outside.count(b"{")


async def _read_body(request: Request, max_bytes: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > max_bytes:
        raise RequestTooLargeError(max_bytes=max_bytes)
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for piece in request.stream():
                body += piece
                if len(body) > max_bytes:
                    raise RequestTooLargeError(max_bytes=max_bytes)
    except TimeoutError:
        raise SlowRequestError(seconds=BODY_SECONDS) from None
    return bytes(body)


def _refuse_constant(name: str) -> NoReturn:
    refuse("body", f"holds {name}, which is no JSON number")
