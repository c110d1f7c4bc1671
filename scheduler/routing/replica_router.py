"""Decides which replica takes a sequence: by the work that it owes, KV room and kept prefixes.

Pure: what replicas are at the moment is an argument. It knows neither workers nor clients.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from scheduler.limits import SchedulerLimits
from scheduler.sequences.sequence import SequencePhase, SequenceRequest, TrackedSequence

EXPECTED_TOKENS = 256
"""Answers are rarely as long as they may be: no request counts for more generated tokens."""

PREFIX_TOKENS = 64
MAX_PREFIX_CHUNKS = 32
"""Prefixes are compared in chunks of so many tokens, and only so many of them."""


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """One replica at the moment of a decision.

    `takes_requests` is False while it is dead, draining or not whole. `num_tokens_owed` counts the
    tokens that its sequences still have to compute or generate, `num_blocks_free` the KV blocks
    that nobody waits for. `seconds_per_token` is what its slowest stage was measured to take, 0
    while that is not known.
    """

    replica: int
    takes_requests: bool
    num_tokens_owed: int = 0
    num_blocks_free: int = 0
    block_size: int = 1
    seconds_per_token: float = 0.0


def make_load(
    replica: int,
    takes_requests: bool,
    sequences: Iterable[TrackedSequence],
    limits: SchedulerLimits,
    num_blocks_used: int,
    seconds_per_token: float,
) -> ReplicaLoad:
    """The load of a replica with these sequences, some of which wait for blocks."""
    num_tokens, num_blocks = 0, num_blocks_used
    for each in sequences:
        num_tokens += each.num_unsent + min(each.final_len - len(each.token_ids), EXPECTED_TOKENS)
        if each.phase is SequencePhase.WAITING:
            num_blocks += limits.blocks_for(len(each.token_ids))
    return ReplicaLoad(
        replica=replica,
        takes_requests=takes_requests,
        num_tokens_owed=num_tokens,
        num_blocks_free=limits.num_blocks - num_blocks,
        block_size=limits.block_size,
        seconds_per_token=seconds_per_token,
    )


@dataclass(frozen=True, slots=True)
class RoutedWork:
    """What a sequence asks of whoever takes it; tokens already generated count as its prompt."""

    num_prompt_tokens: int
    num_new_tokens: int

    @property
    def num_tokens(self) -> int:
        """What it will probably make a replica compute."""
        return self.num_prompt_tokens + min(self.num_new_tokens, EXPECTED_TOKENS)


def choose_replica(
    loads: Sequence[ReplicaLoad], work: RoutedWork, num_kept: dict[int, int]
) -> int | None:
    """The replica that would be done with `work` first; None if none takes requests.

    Those that have KV room for it now come before those that have not. `num_kept` says by replica
    how many of the prompt's tokens it has computed lately, and need not compute again.
    """
    able = [load for load in loads if load.takes_requests]
    if not able:
        return None
    is_measured = all(load.seconds_per_token > 0.0 for load in able)

    def rank(load: ReplicaLoad) -> tuple[bool, float, int]:
        num_blocks = -(-work.num_tokens // load.block_size)
        kept = min(num_kept.get(load.replica, 0), work.num_prompt_tokens)
        num_tokens = load.num_tokens_owed + work.num_tokens - kept
        seconds = num_tokens * (load.seconds_per_token if is_measured else 1.0)
        return num_blocks > load.num_blocks_free, seconds, load.replica

    return min(able, key=rank).replica


def work_of(request: SequenceRequest, num_generated: int = 0) -> RoutedWork:
    """What a sequence asks that has so many of its tokens already."""
    return RoutedWork(
        len(request.prompt_ids) + num_generated, max(0, request.max_tokens - num_generated)
    )


class PrefixMemory:
    """Remembers which replica computed which beginnings of prompts lately.

    A beginning is known by the hash of its chunks, each chained to those before it, and the first
    to the salt: sequences of different salts share no cached blocks, wherever they run.
    """

    def __init__(self, capacity: int = 1 << 16) -> None:
        self._capacity = capacity
        # By chained hash, the least lately used first.
        self._replicas: OrderedDict[int, int] = OrderedDict()

    def note(self, prompt_ids: Sequence[int], replica: int, cache_salt: str = "") -> None:
        """`replica` computes this prompt."""
        for key in _chunk_keys(prompt_ids, cache_salt):
            self._replicas[key] = replica
            self._replicas.move_to_end(key)
        while len(self._replicas) > self._capacity:
            self._replicas.popitem(last=False)

    def forget(self, replica: int) -> None:
        """Its KV cache is gone."""
        kept = ((key, value) for key, value in self._replicas.items() if value != replica)
        self._replicas = OrderedDict(kept)

    def num_kept(self, prompt_ids: Sequence[int], cache_salt: str = "") -> dict[int, int]:
        """By replica, the tokens of this prompt's beginning that it computed lately."""
        kept: dict[int, int] = {}
        for number, key in enumerate(_chunk_keys(prompt_ids, cache_salt), start=1):
            replica = self._replicas.get(key)
            if replica is None:
                break
            kept[replica] = number * PREFIX_TOKENS
        return kept


def _chunk_keys(prompt_ids: Sequence[int], cache_salt: str) -> Iterator[int]:
    """The chained hashes of the prompt's whole chunks, good within this process."""
    key = hash(cache_salt)
    for start in _chunk_starts(len(prompt_ids)):
        key = hash((key, tuple(prompt_ids[start : start + PREFIX_TOKENS])))
        yield key


def _chunk_starts(num_tokens: int) -> Iterable[int]:
    num_chunks = min(num_tokens // PREFIX_TOKENS, MAX_PREFIX_CHUNKS)
    return range(0, num_chunks * PREFIX_TOKENS, PREFIX_TOKENS)
