"""Prints what the mesh waits for while an answer is delayed; polls the mesh's state in a thread.

A mesh that is ready causes no notice. One that is not causes one notice per phase.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Final, Self

from runtime.protocol.inference_types import Update
from stagemesh.client.rpc_error import StagemeshRpcError
from stagemesh.client.state import MeshState
from stagemesh.display.render import summary

DELAY_SECONDS: Final = 3.0


class WaitingNotice:
    """Prints notices while no update passes through `watch`; use it as a context manager."""

    def __init__(
        self,
        get_state: Callable[[], MeshState],
        write: Callable[[str], object],
        delay_seconds: float = DELAY_SECONDS,
    ) -> None:
        """`write` is called from the thread, with whole lines."""
        self._get_state = get_state
        self._write = write
        self._delay_seconds = delay_seconds
        self._ended = threading.Event()
        self._num_updates = 0
        self._thread = threading.Thread(target=self._poll, name="waiting-notice", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()

    def watch(self, updates: Iterable[Update]) -> Iterator[Update]:
        """Yields `updates` unchanged and records their arrival."""
        for update in updates:
            self._num_updates += 1
            yield update

    def _poll(self) -> None:
        num_updates, last_phase = 0, ""
        while not self._ended.wait(self._delay_seconds):
            if self._num_updates != num_updates:
                num_updates, last_phase = self._num_updates, ""
                continue
            try:
                state = self._get_state()
            except (StagemeshRpcError, ValueError):  # unreachable, or the client was just closed
                continue
            if not state.ready and state.phase != last_phase and not self._ended.is_set():
                last_phase = state.phase
                # Inside an answer, the cursor is at the end of its text.
                line_break = "\n" if num_updates else ""
                self._write(
                    f"{line_break}{summary(state)}; the answer continues when it is ready\n"
                )
