"""Hashes the contents of KV blocks, so that equal prefixes of sequences can be found.

A block's keys and values depend on every token up to its end, so its hash covers the previous
block's hash and its own tokens (the chained block hashes of vLLM's prefix cache). The hash is
cryptographic: a client that could make two blocks collide would read another client's prompt.
"""

from collections.abc import Callable, Sequence
from functools import cache
from hashlib import blake2b
from struct import Struct

HASH_BYTES = 16


class BlockHashes:
    """The hashes of one sequence's full blocks, computed on demand."""

    __slots__ = ("_hashes", "_salt")

    def __init__(self, salt: str) -> None:
        """Only sequences with equal `salt` have equal hashes."""
        self._salt = salt.encode()
        self._hashes: list[bytes] = []

    def first(self, num_blocks: int, token_ids: Sequence[int], block_size: int) -> Sequence[bytes]:
        """The hashes of at least `num_blocks` blocks, which `token_ids` must fill.

        `token_ids` may only grow between calls.
        """
        hashes, pack = self._hashes, _packer(block_size)
        while len(hashes) < num_blocks:
            start = len(hashes) * block_size
            tokens = token_ids[start : start + block_size]
            assert len(tokens) == block_size, f"block {len(hashes)} is not full"
            parent = hashes[-1] if hashes else self._salt
            digest = blake2b(parent + pack(*tokens), digest_size=HASH_BYTES)
            hashes.append(digest.digest())
        return hashes


@cache
def _packer(num_tokens: int) -> Callable[..., bytes]:
    return Struct(f"{num_tokens}q").pack
