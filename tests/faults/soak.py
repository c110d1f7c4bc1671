"""Load with deaths at random for a long time: nothing lost, nothing different, nothing growing.

`make soak` runs it for ten minutes; `test_soak.py` for half a minute.
"""

import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path

import psutil
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tests.faults.asking import SEEDED, Asked, Tokens, request_of, salted, undisturbed
from tests.faults.cluster import Cluster, cluster_of
from tests.integration.tiny_chat import make_tiny_chat

NUM_CLIENTS = 4
SECONDS_BETWEEN_KILLS = (4.0, 10.0)
# What a process may grow by after its warm-up, before it counts as a leak.
RSS_SLACK_BYTES = 48 * 2**20
FDS_SLACK = 16
POOL = tuple(
    request_of(tuple(range(3 + start, 3 + start + length)), max_tokens=tokens, **how)
    for start, length, tokens in ((0, 5, 120), (40, 90, 60), (90, 200, 40))
    for how in ({}, {"sampling": SEEDED})
)


@dataclass(frozen=True, slots=True)
class Footprint:
    """What the coordinator holds of the machine."""

    rss_bytes: int
    num_fds: int


@dataclass(slots=True)
class SoakReport:
    """What came of it."""

    num_requests: int = 0
    num_lost: int = 0
    num_different: int = 0
    problems: list[str] = field(default_factory=list)
    killed_at: list[float] = field(default_factory=list)
    # From a kill until the next token, of each answer that was under way.
    token_seconds: list[float] = field(default_factory=list)
    # From a kill until the mesh serves again.
    recovery_seconds: list[float] = field(default_factory=list)
    warm: Footprint = Footprint(0, 0)
    last: Footprint = Footprint(0, 0)

    @property
    def num_kills(self) -> int:
        """Workers that were killed."""
        return len(self.killed_at)

    @property
    def is_flat(self) -> bool:
        """Memory and file descriptors have not grown since the warm-up."""
        return (
            self.last.rss_bytes <= self.warm.rss_bytes + RSS_SLACK_BYTES
            and self.last.num_fds <= self.warm.num_fds + FDS_SLACK
        )

    @property
    def is_good(self) -> bool:
        """What `make soak` asks for."""
        return not self.num_lost and not self.num_different and self.is_flat


def soak(
    cluster: Cluster,
    seconds: float,
    seed: int = 0,
    on_progress: Callable[[float], object] = lambda _: None,
) -> SoakReport:
    """Asks and kills for `seconds`; the mesh is whole, and was idle, before."""
    report, stop, lock = SoakReport(), threading.Event(), threading.Lock()
    expected = {request: undisturbed(cluster, request) for request in POOL}
    clients = [
        threading.Thread(target=_ask, args=(cluster, expected, seed + index, report, stop, lock))
        for index in range(NUM_CLIENTS)
    ]
    for client in clients:
        client.start()
    try:
        _kill_at_random(cluster, seconds, seed, report, on_progress)
    finally:
        stop.set()
        for client in clients:
            client.join()
    cluster.refill()
    cluster.assert_idle()
    report.last = _footprint(cluster)
    return report


def _ask(
    cluster: Cluster,
    expected: dict[object, Tokens],
    seed: int,
    report: SoakReport,
    stop: threading.Event,
    lock: threading.Lock,
) -> None:
    chance = random.Random(seed)
    while not stop.is_set():
        request = chance.choice(POOL)
        asked = Asked(salted(request), cluster.target)
        asked.start()
        asked.wait_for_tokens(10**9)
        with lock:
            report.num_requests += 1
            if asked.error is not None:
                report.num_lost += 1
                report.problems.append(str(asked.error))
            elif tuple(asked.tokens) != expected[request]:
                report.num_different += 1
                report.problems.append(f"{asked.tokens} instead of {expected[request]}")
            else:
                report.token_seconds += [
                    asked.longest_wait(kill) for kill in report.killed_at if asked.times[0] < kill
                ]


def _kill_at_random(
    cluster: Cluster,
    seconds: float,
    seed: int,
    report: SoakReport,
    on_progress: Callable[[float], object],
) -> None:
    """A worker in a while; the footprint counts as warm after a quarter of the time."""
    chance, begun = random.Random(seed), time.monotonic()
    while (passed := time.monotonic() - begun) < seconds:
        on_progress(passed)
        if passed < seconds / 4 or not report.warm.num_fds:
            report.warm = _footprint(cluster)
        time.sleep(chance.uniform(*SECONDS_BETWEEN_KILLS))  # is the fault's own time
        epoch = cluster.wait_until(lambda state: state.ready, "ready").replicas[0].epoch
        victim = cluster.worker_of(chance.randrange(cluster.num_stages))
        killed_at = time.monotonic()
        report.killed_at.append(killed_at)
        victim.kill()
        cluster.wait_until(
            lambda state, old=epoch: state.ready and state.replicas[0].epoch != old,  # type: ignore[misc]
            "serving again",
        )
        report.recovery_seconds.append(time.monotonic() - killed_at)
        cluster.refill()


def _footprint(cluster: Cluster) -> Footprint:
    assert cluster.coordinator is not None
    process = psutil.Process(cluster.coordinator.process.pid)
    return Footprint(process.memory_info().rss, process.num_fds())


def _table(report: SoakReport) -> Table:
    table = Table("what", "figure", title="Soak")
    rows = {
        "requests": f"{report.num_requests}",
        "lost": f"{report.num_lost}",
        "different": f"{report.num_different}",
        "workers killed": f"{report.num_kills}",
        "kill to next token, p50, p99, longest": _quantiles(report.token_seconds),
        "kill to serving again, p50, p99, longest": _quantiles(report.recovery_seconds),
        "coordinator's memory, warm and at the end": (
            f"{report.warm.rss_bytes >> 20} MiB, {report.last.rss_bytes >> 20} MiB"
        ),
        "coordinator's file descriptors": f"{report.warm.num_fds}, {report.last.num_fds}",
    }
    for what, figure in rows.items():
        table.add_row(what, figure)
    return table


def _quantiles(seconds: list[float]) -> str:
    """p50, p99 and the longest."""
    if not seconds:
        return "none"
    ordered = sorted(seconds)
    ranks = [ceil(share * len(ordered)) - 1 for share in (0.5, 0.99, 1.0)]
    return ", ".join(f"{ordered[rank]:.2f} s" for rank in ranks) + f" of {len(ordered)}"


def main() -> None:
    """`python -m tests.faults.soak [SECONDS [SEED]]`; exits with 1 if anything was wrong."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 600.0
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    console = Console()
    with tempfile.TemporaryDirectory() as folder, Progress(console=console) as progress:
        bar = progress.add_task("soak", total=seconds)
        model = str(make_tiny_chat(Path(folder) / "tiny-chat").model.folder)
        with cluster_of(model) as cluster:
            report = soak(
                cluster, seconds, seed, lambda passed: progress.update(bar, completed=passed)
            )
        progress.update(bar, completed=seconds)
    console.print(_table(report))
    for problem in report.problems[:10]:
        console.print(problem, markup=False)
    sys.exit(0 if report.is_good and report.num_kills else 1)


if __name__ == "__main__":
    main()
