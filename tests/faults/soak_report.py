"""What came of load with deaths at random, and the table of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, inf

from rich.table import Table

from tests.faults.asking import Asked, Tokens
from tests.faults.footprints import Lives


@dataclass(slots=True)
class SoakReport:
    """The sums of one run."""

    num_requests: int = 0
    num_lost: int = 0
    num_different: int = 0
    problems: list[str] = field(default_factory=list)
    killed_at: list[float] = field(default_factory=list)
    was_oldest_killed: bool = False
    # From a kill until the next token, of each answer that was under way.
    token_seconds: list[float] = field(default_factory=list)
    # From a kill until the replica serves again.
    recovery_seconds: list[float] = field(default_factory=list)
    lives: Lives = field(default_factory=Lives)

    def note(self, asked: Asked, expected: Tokens) -> None:
        """One answer that is over."""
        self.num_requests += 1
        if asked.error is not None:
            self.num_lost += 1
            self.problems.append(str(asked.error))
        elif tuple(asked.tokens) != expected:
            self.num_different += 1
            self.problems.append(f"{asked.tokens} instead of {expected}")
        else:
            begun, ended = asked.times[0], asked.times[-1]
            self.token_seconds += [
                asked.longest_wait(kill, next_kill)
                for kill, next_kill in pairwise((*self.killed_at, inf))
                if begun < kill < ended
            ]

    @property
    def is_good(self) -> bool:
        """What `make soak` asks for."""
        is_complete = bool(self.num_requests and self.killed_at)
        return is_complete and not self.num_lost and not self.num_different and self.lives.are_flat

    def __str__(self) -> str:
        """The line that shows how far it is."""
        return (
            f"{len(self.killed_at)} killed, {self.num_requests} requests, {self.num_lost} lost, "
            f"{self.num_different} different, serves again after {self.recovery_seconds[-1]:.2f} s"
        )


def table_of(reports: Mapping[str, SoakReport]) -> Table:
    """A column for each mesh."""
    table = Table("what", *reports, title="Soak")
    rows: dict[str, Callable[[SoakReport], str]] = {
        "requests": lambda report: f"{report.num_requests}",
        "lost": lambda report: f"{report.num_lost}",
        "different": lambda report: f"{report.num_different}",
        "workers killed": lambda report: f"{len(report.killed_at)}",
        "kill to next token": lambda report: _quantiles(report.token_seconds),
        "kill to serving again": lambda report: _quantiles(report.recovery_seconds),
        "held, warm to last": lambda report: "\n".join(map(str, report.lives.long)),
        "verdict": lambda report: "good" if report.is_good else "BAD",
    }
    for what, figure in rows.items():
        table.add_row(what, *(figure(report) for report in reports.values()), end_section=True)
    return table


def _quantiles(seconds: list[float]) -> str:
    """p50, p99 and the longest."""
    if not seconds:
        return "none"
    ordered = sorted(seconds)
    ranks = [ceil(share * len(ordered)) - 1 for share in (0.5, 0.99, 1.0)]
    p50, p99, longest = (f"{ordered[rank]:.2f}" for rank in ranks)
    return f"p50 {p50} s\np99 {p99} s\nmost {longest} s\nof {len(ordered)}"
