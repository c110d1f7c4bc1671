"""Parses and formats sizes, layer counts, addresses and durations."""

import re
from collections.abc import Sequence

from runtime.errors import InvalidRequestError

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_SIZE = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)\s*(?P<unit>[A-Za-z]*)")
_TARGET = re.compile(r"(?P<name>ttft|tpot|e2el):(?P<milliseconds>[0-9]+(?:\.[0-9]+)?)")
_ORIGIN = re.compile(r"https?://[^/\s,]+")


def parse_size(text: str) -> int:
    """Bytes from `512MiB`, `2GiB`, `1.5GB` or a plain number; ValueError for other texts."""
    match = _SIZE.fullmatch(text.strip())
    factor = _UNITS.get(match["unit"].upper()) if match else None
    if match is None or factor is None:
        raise ValueError(f"{text!r} is not a size; write for example 512MiB or 2GiB")
    return int(float(match["number"]) * factor)


def format_size(num_bytes: float) -> str:
    """Formats a number of bytes, such as `1.5 MiB`."""
    size = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def format_seconds(seconds: float) -> str:
    """Formats a duration, such as `850 µs`, `12.3 ms` or `4.56 s`."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def parse_layers(text: str) -> tuple[int, ...]:
    """Layers of each stage from `3,20,7`; ValueError unless all are positive integers."""
    return _parse_counts(text, "layer", "3,20,7")


def parse_ranks(text: str) -> tuple[int, ...]:
    """Ranks from `2` (all stages) or `2,1,3` (each stage); ValueError as in `parse_layers`."""
    return _parse_counts(text, "rank", "2 or 2,1,3")


def _parse_counts(text: str, what: str, example: str) -> tuple[int, ...]:
    counts = text.split(",")
    if not all(count.strip().isascii() and count.strip().isdecimal() for count in counts):
        raise ValueError(f"{text!r} is not a list of {what} counts; write for example {example}")
    numbers = tuple(int(count) for count in counts)
    if 0 in numbers:
        raise ValueError(f"{text!r} has a stage without {what}s; each stage needs at least 1")
    return numbers


def parse_origins(text: str) -> tuple[str, ...]:
    """Web origins from `https://a.org,http://localhost:3000` or `*`; ValueError otherwise."""
    origins = tuple(origin.strip() for origin in text.split(","))
    if not all(origin == "*" or _ORIGIN.fullmatch(origin) for origin in origins):
        raise ValueError(f"{text!r} is not a list of origins; write for example https://a.org")
    return origins


def parse_targets(texts: Sequence[str]) -> dict[str, float]:
    """Milliseconds by name from `ttft:500`, `tpot:50` and `e2el:5000`.

    Raises `InvalidRequestError`.
    """
    targets = {}
    for text in texts:
        match = _TARGET.fullmatch(text)
        if match is None or float(match["milliseconds"]) == 0:
            problem = f"{text!r} is no target; write ttft:MS, tpot:MS or e2el:MS, with MS above 0"
            raise InvalidRequestError(field="--goodput", problem=problem)
        targets[match["name"]] = float(match["milliseconds"])
    return targets


def join_address(host: str, port: int) -> str:
    """HOST:PORT, or [HOST]:PORT for IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
