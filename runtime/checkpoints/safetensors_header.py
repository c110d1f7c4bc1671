"""One safetensors file's header, validated against the file's size.

Format: eight bytes of little-endian header length, a JSON object of tensors, then their bytes
without gaps (https://github.com/huggingface/safetensors#format). Reads no tensor data.
"""

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_LENGTH_BYTES: Final = 8
_MAX_HEADER_BYTES: Final = 100_000_000
_MAX_DIMENSIONS: Final = 8
_ITEM_BYTES: Final = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "BOOL": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1,
}  # fmt: skip


class HeaderError(Exception):
    """Raised when a header is invalid or does not fit the file."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of the file; its bytes are `[begin, end)` counted from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read_header(file: Path) -> dict[str, TensorEntry]:
    """The tensors of a file by name, in the order of their bytes.

    Every size is checked against the file's: no tensor ends beyond the file, has another number of
    bytes than its shape and dtype make, or shares bytes with another one. Raises `HeaderError`.
    """
    with file.open("rb") as stream:
        file_bytes = os.fstat(stream.fileno()).st_size
        if file_bytes < _LENGTH_BYTES:
            raise HeaderError(f"truncated: {file_bytes} bytes are no safetensors file")
        header_bytes = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
        data_begin = _LENGTH_BYTES + header_bytes
        if header_bytes > _MAX_HEADER_BYTES or data_begin > file_bytes:
            raise HeaderError(
                f"truncated or no safetensors file: it announces a header of {header_bytes} bytes"
                f" and has {file_bytes} in all"
            )
        header = _parse(stream.read(header_bytes))
    entries = {
        name: _entry(name, fields, data_begin)
        for name, fields in header.items()
        if name != "__metadata__"
    }
    ordered = dict(sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)))
    _check_layout(ordered, data_begin, file_bytes)
    return ordered


def _parse(text: bytes) -> dict[str, object]:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise HeaderError(f"its header is no JSON: {exc}") from exc
    if not isinstance(header, dict):
        raise HeaderError("its header is no JSON object")
    return header


def _entry(name: str, fields: object, data_begin: int) -> TensorEntry:
    match fields:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [begin, end]}:
            pass
        case _:
            raise HeaderError(f"the header's entry for {name} is broken")
    if len(shape) > _MAX_DIMENSIONS:
        raise HeaderError(f"{name} has {len(shape)} dimensions")
    if not all(type(number) is int and number >= 0 for number in (*shape, begin, end)):
        raise HeaderError(f"the header's entry for {name} has a size that is no whole number")
    if dtype not in _ITEM_BYTES:
        raise HeaderError(f"{name} has the unknown dtype {dtype!r}")
    num_bytes = math.prod(shape) * _ITEM_BYTES[dtype]
    if end - begin != num_bytes:
        raise HeaderError(
            f"{name} of shape {shape} and dtype {dtype} needs {num_bytes} bytes, the header gives"
            f" it {end - begin}"
        )
    return TensorEntry(dtype, tuple(shape), data_begin + begin, data_begin + end)


def _check_layout(ordered: dict[str, TensorEntry], data_begin: int, file_bytes: int) -> None:
    position = data_begin
    for name, entry in ordered.items():
        if entry.begin != position:
            relation = "overlaps the tensor before it" if entry.begin < position else "leaves a gap"
            raise HeaderError(f"{name} {relation}: it begins at {entry.begin}, not at {position}")
        position = entry.end
    if position != file_bytes:
        state = "truncated" if position > file_bytes else "too long"
        raise HeaderError(
            f"{state}: the header describes {position} bytes, the file has {file_bytes}"
        )
