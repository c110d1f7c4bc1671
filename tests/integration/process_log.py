"""The lines that a process writes, in a test's hands while it runs."""

import threading
from typing import IO

START_SECONDS = 90.0
STOP_SECONDS = 40.0


class Log:
    """The lines that a process writes, read by a thread so that it never has to wait."""

    def __init__(self, stream: IO[str]) -> None:
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._thread.start()

    def wait_for(self, *texts: str, timeout_seconds: float = START_SECONDS) -> str:
        """The first line with all `texts` in it; fails with the whole log when it does not come."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._find(texts) is not None or self._is_closed, timeout_seconds
            )
            line = self._find(texts)
        assert line is not None, f"no line with {texts} in:\n" + "\n".join(self.lines)
        return line

    def close(self) -> None:
        """Waits until everything that was written is read."""
        self._thread.join(STOP_SECONDS)

    def _find(self, texts: tuple[str, ...]) -> str | None:
        return next((line for line in self.lines if all(text in line for text in texts)), None)

    def _read(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                with self._changed:
                    self.lines.append(line.rstrip("\n"))
                    self._changed.notify_all()
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
