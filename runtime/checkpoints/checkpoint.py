"""The index of a checkpoint folder: the file and offset of each tensor.

Reads headers and a few samples, never whole weights, and never pickled files. What a header states
is checked against the file, so a truncated or inconsistent file is an error here and not a crash
where the weights are read. Independent of torch and of architectures.
"""

import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from runtime.checkpoints.safetensors_header import HeaderError, TensorEntry, read_header
from runtime.errors import CheckpointError, UnsafeCheckpointError

_SINGLE: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"
_PICKLED: Final = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_NUM_SAMPLES: Final = 64
_SAMPLE_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: `num_bytes` little-endian, row-major bytes at `offset` of `file`.

    `dtype` is safetensors' word: F32, BF16, F16, ...
    """

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    num_bytes: int
    offset: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All tensors of a folder by name, and a digest that two copies of one checkpoint share.

    `fingerprint` covers config.json, the headers, the file sizes and evenly spaced samples of the
    content: it distinguishes checkpoints quickly, and is no proof against forgery.
    """

    folder: Path
    tensors: Mapping[str, TensorInfo]
    fingerprint: str

    @classmethod
    def open(cls, folder: Path) -> "Checkpoint":
        """Reads the headers of `model.safetensors`, or of all files of its index.

        Raises `UnsafeCheckpointError` where there are pickled weights only, and `CheckpointError`,
        naming file and problem, where anything is missing or does not fit.
        """
        if (folder / _SINGLE).is_file():
            headers = {_SINGLE: _header(folder, _SINGLE)}
            tensors = dict(_infos(folder, _SINGLE, headers[_SINGLE]))
        elif (folder / _INDEX).is_file():
            weight_map = _read_weight_map(folder)
            headers = {name: _header(folder, name) for name in sorted(set(weight_map.values()))}
            tensors = _pick(folder, weight_map, headers)
        else:
            raise _no_weights(folder)
        return cls(folder, tensors, _fingerprint(folder, tensors.values()))


def sample_digest(file: Path) -> bytes:
    """Digest of a file's size and of evenly spaced samples, its first and last bytes among them."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        num_bytes = os.fstat(stream.fileno()).st_size
        digest.update(num_bytes.to_bytes(8, "little"))
        last = max(0, num_bytes - _SAMPLE_BYTES)
        for index in range(_NUM_SAMPLES):
            stream.seek(last * index // (_NUM_SAMPLES - 1))
            digest.update(stream.read(_SAMPLE_BYTES))
    return digest.digest()


def _no_weights(folder: Path) -> CheckpointError | UnsafeCheckpointError:
    if any(next(folder.glob(pattern), None) for pattern in _PICKLED):
        return UnsafeCheckpointError(folder=str(folder))
    return CheckpointError(folder=str(folder), problem=f"there is neither {_SINGLE} nor {_INDEX}")


def _header(folder: Path, name: str) -> dict[str, TensorEntry]:
    try:
        return read_header(folder / name)
    except FileNotFoundError:
        problem = f"{name} is missing"
    except (OSError, HeaderError) as exc:
        problem = f"{name}: {exc}"
    raise CheckpointError(folder=str(folder), problem=problem)


def _infos(
    folder: Path, name: str, header: dict[str, TensorEntry]
) -> Iterator[tuple[str, TensorInfo]]:
    for tensor, entry in header.items():
        num_bytes = entry.end - entry.begin
        info = TensorInfo(tensor, folder / name, entry.dtype, entry.shape, num_bytes, entry.begin)
        yield tensor, info


def _read_weight_map(folder: Path) -> dict[str, str]:
    """Tensor -> file name, from the index; file names that leave the folder are refused."""
    try:
        index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
        weight_map = dict(index["weight_map"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as exc:
        raise CheckpointError(
            folder=str(folder), problem=f"{_INDEX} cannot be read: {exc!r}"
        ) from exc
    for name in weight_map.values():
        if not isinstance(name, str) or Path(name).name != name or "\0" in name:
            raise CheckpointError(
                folder=str(folder), problem=f"{_INDEX} names {name!r}, which is no file name"
            )
        if not name.endswith(".safetensors"):
            raise UnsafeCheckpointError(folder=str(folder))
    return weight_map


def _pick(
    folder: Path, weight_map: dict[str, str], headers: dict[str, dict[str, TensorEntry]]
) -> dict[str, TensorInfo]:
    found = {name: dict(_infos(folder, name, header)) for name, header in headers.items()}
    for tensor, name in weight_map.items():
        if tensor not in found[name]:
            raise CheckpointError(
                folder=str(folder), problem=f"{name} lacks {tensor}, which {_INDEX} lists in it"
            )
    return {tensor: found[name][tensor] for tensor, name in weight_map.items()}


def _fingerprint(folder: Path, tensors: Collection[TensorInfo]) -> str:
    contents = sorted((t.name, t.file.name, t.dtype, t.shape, t.offset) for t in tensors)
    digest = hashlib.sha256(json.dumps(contents).encode())
    try:
        digest.update(hashlib.sha256((folder / "config.json").read_bytes()).digest())
        for file in sorted({tensor.file for tensor in tensors}):
            digest.update(sample_digest(file))
    except OSError as exc:
        raise CheckpointError(folder=str(folder), problem=str(exc)) from exc
    return digest.hexdigest()
