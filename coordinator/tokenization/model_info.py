"""Loads the model's description: name, configuration, fingerprint and tokenizer, no weights."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar, cast

from coordinator.tokenization.tokenizer import Tokenizer
from runtime.checkpoints.checkpoint import Checkpoint
from runtime.checkpoints.model_store import resolve_model, served_name
from runtime.checkpoints.progress import ProgressFn
from runtime.model_config.model_config import ModelConfig, load_model_config

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model's description for APIs and planning; `name` is its name in requests."""

    name: str
    config: ModelConfig
    fingerprint: str
    tokenizer: Tokenizer


async def load_served_model(model: str, progress: ProgressFn) -> ServedModel:
    """Resolves MODEL, which may download or convert it; raises the errors of its files.

    `progress` is called on the event loop.
    """
    loop = asyncio.get_running_loop()

    def report(phase: str, done: int, total: int) -> None:
        loop.call_soon_threadsafe(progress, phase, done, total)

    return await _in_daemon_thread(lambda: _load(model, report))


def _load(model: str, progress: ProgressFn) -> ServedModel:
    folder = resolve_model(model, progress=progress)
    progress("reading the model's configuration", 0, 0)
    config = load_model_config(folder)
    return ServedModel(
        name=served_name(model),
        config=config,
        fingerprint=Checkpoint.open(folder).fingerprint,
        tokenizer=Tokenizer.load(folder, config),
    )


async def _in_daemon_thread(work: Callable[[], T]) -> T:
    """Like `asyncio.to_thread`, but a stop of the process does not wait for a download to end."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: Exception | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(cast("T", result))

    def run() -> None:
        try:
            outcome: tuple[T | None, Exception | None] = (work(), None)
        except Exception as error:  # noqa: BLE001 - a thread's boundary: it is raised again in the waiting task
            outcome = (None, error)
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=run, name="model", daemon=True).start()
    return await future
