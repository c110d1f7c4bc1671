"""Owns what a command says while an answer stays out: what the mesh waits for, asked in a thread.

A mesh that serves may take its time and is left in peace; one that is broken is told of, once for
each phase.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Final, Self

from stagemesh.client.rpc_error import StagemeshRpcError
from stagemesh.client.state import MeshState
from stagemesh.client.types import Update
from stagemesh.display.render import summary

PATIENCE_SECONDS: Final = 3.0


class SilenceWatch:
    """Watches the updates that pass `through` it; use it as `with`."""

    def __init__(
        self,
        ask: Callable[[], MeshState],
        say: Callable[[str], object],
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        """`ask` is for the mesh's state; `say` gets whole lines, from the thread."""
        self._ask = ask
        self._say = say
        self._patience_seconds = patience_seconds
        self._over = threading.Event()
        self._num_heard = 0
        self._thread = threading.Thread(target=self._watch, name="silence", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()

    def through(self, updates: Iterable[Update]) -> Iterator[Update]:
        """The updates, as they come."""
        for update in updates:
            self._num_heard += 1
            yield update

    def _watch(self) -> None:
        num_heard, said = 0, ""
        while not self._over.wait(self._patience_seconds):
            if self._num_heard != num_heard:
                num_heard, said = self._num_heard, ""
                continue
            try:
                state = self._ask()
            except (StagemeshRpcError, ValueError):  # not there now, or closed at the very end
                continue
            if not state.ready and state.phase != said and not self._over.is_set():
                said = state.phase
                # In mid-answer, the cursor stands behind its text.
                line_break = "\n" if num_heard else ""
                self._say(f"{line_break}{summary(state)}; the answer goes on when it is ready\n")
