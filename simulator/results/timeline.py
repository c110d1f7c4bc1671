"""Draws the steps of a replay: one row per stage, gaps are bubbles."""

from collections.abc import Sequence
from pathlib import Path

from runtime.errors import InvalidRequestError
from simulator.workload.outcomes import StepSpan

_PROMPT, _DECODE = "#d95f02", "#1b9e77"


def draw_timeline(
    spans: Sequence[StepSpan], num_stages: int, path: Path, title: str, seconds: float = 1.0
) -> None:
    """Writes a PNG of the busiest `seconds` in the middle of a replay.

    Raises `InvalidRequestError` if matplotlib (extra `plot`) is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        problem = "needs matplotlib: pip install 'stagemesh[plot]'"
        raise InvalidRequestError(field="--plot", problem=problem) from None
    start = spans[len(spans) // 2].sent_at
    figure = Figure(figsize=(14, 1 + 0.6 * num_stages), layout="constrained")
    axes = figure.add_subplot()
    for span in spans:
        if span.step_trace.done_at < start or span.sent_at > start + seconds:
            continue
        color = _PROMPT if span.work.has_prompts else _DECODE
        for visit in span.step_trace.visits:
            bar = [(visit.started_at - start, visit.ended_at - visit.started_at)]
            axes.broken_barh(bar, (visit.stage - 0.4, 0.8), facecolor=color, edgecolor="white")
    axes.set_xlim(0, seconds)
    axes.set_ylim(num_stages - 0.5, -0.5)
    axes.set_yticks(range(num_stages), [f"stage {stage}" for stage in range(num_stages)])
    axes.set_xlabel(f"seconds after {start:.1f} s")
    axes.set_title(f"{title}: with prompts (orange), decodes only (green), idle (white)")
    figure.savefig(path, dpi=110)
