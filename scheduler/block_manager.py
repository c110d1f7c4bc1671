"""Owns the ids of a replica's KV blocks: which are free, which are taken.

It knows nothing of sequences. Freed blocks may be taken again at once: the step that reuses one
carries the release, and ranks run steps strictly in order.
"""

from collections import deque
from collections.abc import Iterable


class BlockManager:
    """A pool of block ids 0 to num_blocks - 1; the block that was freed first is taken first."""

    def __init__(self, num_blocks: int) -> None:
        # Never taken yet, from here up; a count, because a cache may have very many blocks.
        self._first_fresh = 0
        self._num_blocks = num_blocks
        self._freed: deque[int] = deque()
        self._used: set[int] = set()

    @property
    def num_free(self) -> int:
        """Blocks that may be taken now."""
        return self._num_blocks - len(self._used)

    @property
    def num_used(self) -> int:
        """Blocks that are taken."""
        return len(self._used)

    def take(self, num_blocks: int) -> tuple[int, ...]:
        """Takes so many blocks, of which at least as many must be free."""
        assert num_blocks <= self.num_free, f"{num_blocks} blocks of {self.num_free} free"
        end = min(self._first_fresh + num_blocks, self._num_blocks)
        fresh = range(self._first_fresh, end)
        self._first_fresh = end
        freed = (self._freed.popleft() for _ in range(num_blocks - len(fresh)))
        block_ids = (*fresh, *freed)
        self._used.update(block_ids)
        return block_ids

    def free(self, block_ids: Iterable[int]) -> None:
        """Gives taken blocks back."""
        for block_id in block_ids:
            assert block_id in self._used, f"block {block_id} was freed twice"
            self._used.remove(block_id)
            self._freed.append(block_id)

    def check_integrity(self, held: Iterable[int], num_blocks: int) -> None:
        """Asserts that `held` are exactly the taken blocks, each once, and none is lost."""
        held_ids = list(held)
        assert len(held_ids) == len(set(held_ids)), f"blocks held twice: {sorted(held_ids)}"
        assert set(held_ids) == self._used, f"held {sorted(held_ids)}, used {sorted(self._used)}"
        fresh = range(self._first_fresh, self._num_blocks)
        everything = sorted((*fresh, *self._freed, *self._used))
        assert everything == list(range(num_blocks)), f"blocks lost or doubled: {everything}"
