"""Owns the question which workers live but are out of the mesh for too long, as frozen ones are.

It ends nothing itself; a worker that never was in the mesh is not its business. One that left to
end has more time for that.
"""

from collections.abc import Set as AbstractSet


class MissingWorkers:
    """What was seen of the workers' processes, by their ids; times are in seconds."""

    def __init__(self, patience_seconds: float, ending_seconds: float) -> None:
        """How long they may be out, and those that have begun to end."""
        self._patience_seconds = patience_seconds
        self._ending_seconds = ending_seconds
        # When each was last seen in the mesh.
        self._last_seen: dict[int, float] = {}

    def note(self, alive: AbstractSet[int], joined: AbstractSet[int], now: float) -> list[int]:
        """Takes in who lives and who is in the mesh; those that are out for too long.

        They should be ended, unless they are ending by themselves.
        """
        self._last_seen |= dict.fromkeys(joined & alive, now)
        self._last_seen = {pid: seen for pid, seen in self._last_seen.items() if pid in alive}
        return [pid for pid, seen in self._last_seen.items() if now - seen > self._patience_seconds]

    def is_overdue(self, pid: int, now: float) -> bool:
        """Whether a worker that was noted is out for too long even for one that is ending."""
        return now - self._last_seen[pid] > self._ending_seconds
