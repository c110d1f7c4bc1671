"""Load with deaths at random for a long time: nothing lost, nothing different, nothing growing.

`make soak` runs it for ten minutes, over a pipeline, ranks and replicas in turns; `test_soak.py`
for a minute, over the pipeline.
"""

import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from tests.faults.asking import SEEDED, Asked, Tokens, request_of, salted, undisturbed
from tests.faults.cluster import Cluster, Layout, Place, cluster_of
from tests.faults.soak_report import SoakReport, table_of
from tests.faults.workers import WorkerProcess
from tests.integration.tiny_chat import make_tiny_chat

NUM_CLIENTS = 4
SECONDS_BETWEEN_KILLS = (4.0, 10.0)
POOL = tuple(
    request_of(tuple(range(3 + start, 3 + start + length)), max_tokens=tokens, **how)
    for start, length, tokens in ((0, 5, 120), (40, 90, 60), (90, 200, 40))
    for how in ({}, {"sampling": SEEDED})
)
# What `make soak` tries one after the other, and each one's share of the time.
LAYOUTS = (
    ("two stages", Layout(), 0.5),
    ("two ranks", Layout(tp=(2,)), 0.25),
    ("two replicas", Layout(tp=(1,), dp=2), 0.25),
)


@dataclass(slots=True)
class Soak:
    """One run over one mesh."""

    cluster: Cluster
    seconds: float
    on_kill: Callable[[SoakReport], object] = lambda _: None
    seed: int = 0
    report: SoakReport = field(default_factory=SoakReport)
    _expected: dict[object, Tokens] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self) -> SoakReport:
        """Asks and kills; the mesh is whole, and was idle, before."""
        self._expected = {request: undisturbed(self.cluster, request) for request in POOL}
        clients = [
            threading.Thread(target=self._ask, args=(random.Random(self.seed + index),))
            for index in range(NUM_CLIENTS)
        ]
        for client in clients:
            client.start()
        try:
            self._kill_at_random(random.Random(self.seed))
        finally:
            self._stop.set()
            for client in clients:
                client.join()
        self.cluster.refill()
        self.cluster.assert_idle()
        self._look()
        return self.report

    def _ask(self, chance: random.Random) -> None:
        """One client that asks over and over."""
        while not self._stop.is_set():
            request = chance.choice(POOL)
            asked = Asked(salted(request), self.cluster.target)
            asked.start()
            asked.wait_for_tokens(10**9)
            with self._lock:
                self.report.note(asked, self._expected[request])

    def _kill_at_random(self, chance: random.Random) -> None:
        begun = time.monotonic()
        while (passed := time.monotonic() - begun) < self.seconds:
            self._look_for(chance.uniform(*SECONDS_BETWEEN_KILLS))
            is_second_half = passed > self.seconds / 2
            place, victim = self._choose(chance, is_second_half)
            epoch = self.cluster.epoch(place.replica)
            killed_at = time.monotonic()
            victim.kill()
            with self._lock:
                self.report.killed_at.append(killed_at)
            self.cluster.wait_for_epoch_after(epoch, place.replica)
            self.report.recovery_seconds.append(time.monotonic() - killed_at)
            self.cluster.refill()
            self.on_kill(self.report)

    def _choose(self, chance: random.Random, is_second_half: bool) -> tuple[Place, WorkerProcess]:
        """Anybody in use but the oldest, so that one goes through many epochs.

        The oldest of the first half is killed as the second one begins.
        """
        in_use = self.cluster.workers_in_use()
        # In the order in which they were started.
        pids = [worker.pid for worker in self.cluster.workers]
        places = sorted(in_use, key=lambda place: pids.index(in_use[place].pid))
        if is_second_half and not self.report.was_oldest_killed:
            self.report.was_oldest_killed = True
            return places[0], in_use[places[0]]
        place = chance.choice(places[1:])
        return place, in_use[place]

    def _look_for(self, seconds: float) -> None:
        """The time between two deaths, with a look every second."""
        for _ in range(round(seconds)):
            time.sleep(1.0)  # is the load's own time
            self._look()

    def _look(self) -> None:
        """At every process of a whole mesh that has work to do."""
        workers = [("worker", worker.pid) for worker in self.cluster.workers_in_use().values()]
        coordinator = ("coordinator", self.cluster.coordinator.process.pid)
        self.report.lives.look([coordinator, *workers])


def main() -> None:
    """`python -m tests.faults.soak [SECONDS [SEED]]`; exits with 1 if anything was wrong."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 600.0
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    console = Console()
    reports: dict[str, SoakReport] = {}
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        model = str(make_tiny_chat(Path(folder) / "tiny-chat").model.folder)
        for name, layout, share in LAYOUTS:

            def show(report: SoakReport, name: str = name) -> None:
                passed = f"{time.monotonic() - begun:4.0f} s"
                console.print(f"{passed}  {name}: {report}", highlight=False, soft_wrap=True)

            with cluster_of(model, layout) as cluster:
                reports[name] = Soak(cluster, share * seconds, show, seed).run()
    console.print(table_of(reports))
    for report in reports.values():
        for problem in report.problems[:10]:
            console.print(problem, markup=False)
    sys.exit(0 if all(report.is_good for report in reports.values()) else 1)


if __name__ == "__main__":
    main()
