"""Names the contents of KV blocks, so that equal beginnings of sequences can be found.

A block's keys and values depend on every token up to its end, so its name is a hash of the name
before it and of its own tokens (the chained block hashes of vLLM's prefix cache). It is a
cryptographic hash: whoever could make two blocks collide would read another client's prompt.
"""

from array import array
from collections.abc import Sequence
from hashlib import blake2b

HASH_BYTES = 16


class BlockHashes:
    """The names of one sequence's full blocks, computed as far as they are asked for."""

    __slots__ = ("_hashes", "_salt")

    def __init__(self, salt: str) -> None:
        """Only sequences with equal `salt` have equal names."""
        self._salt = salt.encode()
        self._hashes: list[bytes] = []

    def get(self, index: int, token_ids: Sequence[int], block_size: int) -> bytes:
        """The name of block `index`, which `token_ids` must fill; they may only ever grow."""
        hashes = self._hashes
        while len(hashes) <= index:
            start = len(hashes) * block_size
            tokens = array("q", token_ids[start : start + block_size])
            assert len(tokens) == block_size, f"block {index} is not full"
            parent = hashes[-1] if hashes else self._salt
            digest = blake2b(parent, digest_size=HASH_BYTES)
            digest.update(tokens.tobytes())
            hashes.append(digest.digest())
        return hashes[index]
