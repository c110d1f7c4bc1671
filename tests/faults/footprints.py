"""What processes hold of the machine over their lives: memory and file descriptors."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil

import psutil

# What a process may grow by, before it counts as a leak: the KV cache's pages are touched one by
# one, and allocators keep some of what was freed.
RSS_SLACK_BYTES = 48 * 2**20
FDS_SLACK = 16
# Of a process's life, what counts as its warm-up, and the looks at it that there must be.
WARM_UP, MIN_LOOKS = 1 / 3, 9


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a process holds at one moment."""

    rss_bytes: int
    num_fds: int

    @classmethod
    def of(cls, pid: int) -> "Footprint":
        """As the operating system counts."""
        process = psutil.Process(pid)
        return cls(process.memory_info().rss, process.num_fds())


@dataclass(slots=True)
class Life:
    """One process, looked at now and then."""

    name: str
    looks: list[Footprint] = field(default_factory=list)

    @property
    def warm(self) -> Footprint:
        """The most that it held while it warmed up."""
        first = self.looks[: max(1, ceil(WARM_UP * len(self.looks)))]
        return Footprint(max(look.rss_bytes for look in first), max(look.num_fds for look in first))

    @property
    def last(self) -> Footprint:
        """The latest look."""
        return self.looks[-1]

    @property
    def is_long(self) -> bool:
        """Whether there were looks enough to speak of growth."""
        return len(self.looks) >= MIN_LOOKS

    @property
    def is_flat(self) -> bool:
        """It has not grown since its warm-up."""
        return (
            self.last.rss_bytes <= self.warm.rss_bytes + RSS_SLACK_BYTES
            and self.last.num_fds <= self.warm.num_fds + FDS_SLACK
        )

    def __str__(self) -> str:
        """From the warm-up to the last look."""
        warm, last = self.warm, self.last
        memory = f"{warm.rss_bytes >> 20} to {last.rss_bytes >> 20} MiB"
        return f"{self.name}: {memory}, {warm.num_fds} to {last.num_fds} fds"


@dataclass(slots=True)
class Lives:
    """All processes of a mesh, also those that are gone, by process id."""

    by_pid: dict[int, Life] = field(default_factory=dict)

    def look(self, processes: Iterable[tuple[str, int]]) -> None:
        """Looks at each of these names and process ids."""
        for name, pid in processes:
            self.by_pid.setdefault(pid, Life(name)).looks.append(Footprint.of(pid))

    @property
    def long(self) -> list[Life]:
        """Those that lived long enough to speak of growth."""
        return [life for life in self.by_pid.values() if life.is_long]

    @property
    def are_flat(self) -> bool:
        """Asserts that no process has grown, of a coordinator and at least one worker."""
        names = {life.name for life in self.long}
        return len(names) > 1 and all(life.is_flat for life in self.long)
