"""Owns the ids of a replica's KV blocks: which are free, who holds them, and what they still say.

It knows nothing of sequences. Freed blocks may be taken again at once: the step that reuses one
carries the release, and ranks run steps strictly in order. A block that was given a name (see
`block_hashes.py`) keeps its content when it is freed, until it is taken for something else.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable


class BlockManager:
    """A pool of block ids 0 to num_blocks - 1, each free or held by one or several.

    Taken first are blocks that never were, then those freed without a name, first freed first, and
    last the named ones, of which the longest unused goes first.
    """

    def __init__(self, num_blocks: int) -> None:
        # Never taken yet, from here up; a count, because a cache may have very many blocks.
        self._first_fresh = 0
        self._num_blocks = num_blocks
        self._freed: deque[int] = deque()
        # Free and named, the longest unused first; a plain dict finds its first in linear time.
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._num_holders: dict[int, int] = {}
        self._block_of_hash: dict[bytes, int] = {}
        self._hash_of_block: dict[int, bytes] = {}

    @property
    def num_free(self) -> int:
        """Blocks that may be taken now."""
        return self._num_blocks - len(self._num_holders)

    @property
    def num_used(self) -> int:
        """Blocks that somebody holds."""
        return len(self._num_holders)

    def take(self, num_blocks: int) -> tuple[int, ...]:
        """Takes so many blocks, of which at least as many must be free."""
        assert num_blocks <= self.num_free, f"{num_blocks} blocks of {self.num_free} free"
        return tuple([self.take_one() for _ in range(num_blocks)])

    def take_one(self) -> int:
        """Takes a block, of which one must be free."""
        if self._first_fresh < self._num_blocks:
            block_id = self._first_fresh
            self._first_fresh += 1
        elif self._freed:
            block_id = self._freed.popleft()
        else:
            block_id, _ = self._idle.popitem(last=False)
            del self._block_of_hash[self._hash_of_block.pop(block_id)]
        self._num_holders[block_id] = 1
        return block_id

    def find(self, name: bytes) -> int | None:
        """The block of that name, held or free, or None."""
        return self._block_of_hash.get(name)

    def is_held(self, block_id: int) -> bool:
        """Whether anybody holds a block; to share one that nobody holds takes a free block."""
        return block_id in self._num_holders

    def share(self, block_ids: Iterable[int]) -> None:
        """Holds named blocks, once more than before."""
        for block_id in block_ids:
            assert block_id in self._hash_of_block, f"block {block_id} is shared and has no name"
            self._idle.pop(block_id, None)
            self._num_holders[block_id] = self._num_holders.get(block_id, 0) + 1

    def name(self, block_id: int, name: bytes) -> None:
        """Names a held block; where another block has that name, this one stays without."""
        assert block_id in self._num_holders, f"block {block_id} is named and free"
        assert block_id not in self._hash_of_block, f"block {block_id} was named twice"
        if name not in self._block_of_hash:
            self._block_of_hash[name] = block_id
            self._hash_of_block[block_id] = name

    def free(self, block_ids: Iterable[int]) -> None:
        """Gives held blocks back, once each."""
        for block_id in block_ids:
            num_holders = self._num_holders.pop(block_id, 0)
            assert num_holders > 0, f"block {block_id} was freed twice"
            if num_holders > 1:
                self._num_holders[block_id] = num_holders - 1
            elif block_id in self._hash_of_block:
                self._idle[block_id] = None
            else:
                self._freed.append(block_id)

    def check_integrity(self, held: Iterable[int], num_blocks: int) -> None:
        """Asserts that `held`, a block once for each holder, are all that is held; none is lost."""
        holders = Counter(held)
        assert holders == self._num_holders, f"held {holders}, counted {self._num_holders}"
        fresh = range(self._first_fresh, self._num_blocks)
        everything = sorted((*fresh, *self._freed, *self._idle, *self._num_holders))
        assert everything == list(range(num_blocks)), f"blocks lost or doubled: {everything}"
        names = {block_id: name for name, block_id in self._block_of_hash.items()}
        assert names == self._hash_of_block, "names and blocks disagree"
        assert self._idle.keys() <= names.keys(), "a free block without a name counts as cached"
        assert names.keys().isdisjoint(self._freed), "a free block lost its place, not its name"
