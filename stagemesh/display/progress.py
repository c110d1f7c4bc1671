"""Shows progress while a model is prepared and a mesh starts; on standard error only."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from stagemesh.client.state import MeshState
from stagemesh.display.render import layer_range


def print_line(console: Console, line: str) -> None:
    """Prints one line without wrapping; a child's line keeps its ANSI colours."""
    console.print(Text.from_ansi(line), soft_wrap=True)


class ProgressView:
    """Progress bars on a terminal, otherwise one line per phase; use it as a context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}
        self._phase = ""

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bars.stop()

    def show_phase(self, phase: str) -> None:
        """Prints the current phase when it changes."""
        if phase and phase != self._phase:
            self._phase = phase
            self._bars.console.print(Text(phase, style="dim"))

    def show_amount(self, name: str, done: int, total: int) -> None:
        """Updates the bar `name`; a `total` of 0 means unknown."""
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=None)
        self._bars.update(self._tasks[name], completed=done, total=total or None)

    def show_preparation(self, phase: str, done: int, total: int) -> None:
        """Shows the download or conversion of a model."""
        if not self._console.is_terminal:
            self.show_phase(phase)
        self.show_amount(phase, done, total)

    def show_state(self, state: MeshState) -> None:
        """Shows the phase and the loading stages of a mesh that starts."""
        self.show_phase(state.phase)
        for replica in state.replicas:
            for stage in replica.stages:
                name = f"stage {stage.stage} (layers {layer_range(stage)})"
                self.show_amount(name, stage.load_done_bytes, stage.load_total_bytes)
