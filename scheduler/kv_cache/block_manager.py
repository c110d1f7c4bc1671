"""Allocates KV block ids with reference counts, and keeps the content of freed blocks by hash.

It knows nothing of sequences. Freed blocks may be allocated again at once: the step that reuses one
carries the release, and ranks run steps strictly in order. A block with a registered hash (see
`block_hashes.py`) keeps its content when it is freed, until it is allocated again.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable


class BlockManager:
    """A pool of block ids 0 to num_blocks - 1, each free or with one or more holders.

    The eviction rule: never used blocks are allocated first, then freed blocks without a hash in
    FIFO order, then cached blocks, the least recently used first.
    """

    def __init__(self, num_blocks: int) -> None:
        # Blocks from here up were never used; a count, because a cache may have many blocks.
        self._first_fresh = 0
        self._num_blocks = num_blocks
        self._freed: deque[int] = deque()
        # Free and cached, the least recently used first; a dict finds its first in linear time.
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._num_holders: dict[int, int] = {}
        self._block_of_hash: dict[bytes, int] = {}
        self._hash_of_block: dict[int, bytes] = {}

    @property
    def num_free(self) -> int:
        """Blocks without a holder."""
        return self._num_blocks - len(self._num_holders)

    @property
    def num_used(self) -> int:
        """Blocks with at least one holder."""
        return len(self._num_holders)

    def take(self, num_blocks: int) -> tuple[int, ...]:
        """Allocates blocks, of which enough must be free."""
        assert num_blocks <= self.num_free, f"{num_blocks} blocks of {self.num_free} free"
        return tuple([self.take_one() for _ in range(num_blocks)])

    def take_one(self) -> int:
        """Allocates one block, of which one must be free."""
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

    def find(self, block_hash: bytes) -> int | None:
        """The block with this hash, held or free, or None."""
        return self._block_of_hash.get(block_hash)

    def is_held(self, block_id: int) -> bool:
        """Whether a block has a holder; sharing a free block reduces the number of free blocks."""
        return block_id in self._num_holders

    def share(self, block_ids: Iterable[int]) -> None:
        """Adds one holder to each of these cached blocks."""
        for block_id in block_ids:
            assert block_id in self._hash_of_block, f"block {block_id} is shared and has no hash"
            self._idle.pop(block_id, None)
            self._num_holders[block_id] = self._num_holders.get(block_id, 0) + 1

    def register(self, block_id: int, block_hash: bytes) -> None:
        """Registers a held block's hash; ignored if another block has the same one."""
        assert block_id in self._num_holders, f"block {block_id} is registered and free"
        assert block_id not in self._hash_of_block, f"block {block_id} was registered twice"
        if block_hash not in self._block_of_hash:
            self._block_of_hash[block_hash] = block_id
            self._hash_of_block[block_id] = block_hash

    def free(self, block_ids: Iterable[int]) -> None:
        """Removes one holder from each of these blocks."""
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
        """Asserts that `held`, one entry per holder, are all held blocks, and that none is lost."""
        holders = Counter(held)
        assert holders == self._num_holders, f"held {holders}, counted {self._num_holders}"
        fresh = range(self._first_fresh, self._num_blocks)
        everything = sorted((*fresh, *self._freed, *self._idle, *self._num_holders))
        assert everything == list(range(num_blocks)), f"blocks lost or doubled: {everything}"
        hashes = {block_id: key for key, block_id in self._block_of_hash.items()}
        assert hashes == self._hash_of_block, "hashes and blocks disagree"
        assert self._idle.keys() <= hashes.keys(), "a free block without a hash counts as cached"
        assert hashes.keys().isdisjoint(self._freed), (
            "a cached block is in the list of uncached ones"
        )
