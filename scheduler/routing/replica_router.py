"""Selects the replica of a sequence by pending work, free KV blocks and cached prefixes.

Pure: the replicas' loads are arguments. It knows neither workers nor clients.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from scheduler.limits import SchedulerLimits
from scheduler.sequences.sequence import SequencePhase, SequenceRequest, TrackedSequence

EXPECTED_TOKENS = 256
"""Maximum of generated tokens that a request counts for: answers are rarely as long as allowed."""

PREFIX_TOKENS = 64
MAX_PREFIX_CHUNKS = 32
"""Prefixes are compared in chunks of `PREFIX_TOKENS`, at most `MAX_PREFIX_CHUNKS` of them."""


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """One replica at the moment of a decision.

    `takes_requests` is False while it is dead, draining or incomplete. `num_tokens_owed` counts the
    tokens that its sequences still have to compute or generate, `num_blocks_free` the KV blocks
    that no waiting sequence needs. `seconds_per_token` is the measured time of its slowest stage,
    0 while unknown.
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
    """The work of a sequence for a replica; generated tokens count as part of the prompt."""

    num_prompt_tokens: int
    num_new_tokens: int

    @property
    def num_tokens(self) -> int:
        """The expected number of tokens to compute."""
        return self.num_prompt_tokens + min(self.num_new_tokens, EXPECTED_TOKENS)


def choose_replica(
    loads: Sequence[ReplicaLoad], work: RoutedWork, num_kept: dict[int, int]
) -> int | None:
    """The replica that would finish `work` first; None if none takes requests.

    Replicas with enough free KV blocks come first. `num_kept` is the number of the prompt's tokens
    that each replica computed recently and probably has cached.
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
    """The work of a sequence with `num_generated` tokens."""
    return RoutedWork(
        len(request.prompt_ids) + num_generated, max(0, request.max_tokens - num_generated)
    )


class PrefixMemory:
    """Records which replica computed which prompt prefixes recently.

    A prefix is identified by chained hashes of its chunks, starting from the salt: sequences of
    different salts share no cached blocks.
    """

    def __init__(self, capacity: int = 1 << 16) -> None:
        self._capacity = capacity
        # By chained hash, the least recently used first.
        self._replicas: OrderedDict[int, int] = OrderedDict()

    def note(self, prompt_ids: Sequence[int], replica: int, cache_salt: str = "") -> None:
        """Records that `replica` computes this prompt."""
        for key in _chunk_keys(prompt_ids, cache_salt):
            self._replicas[key] = replica
            self._replicas.move_to_end(key)
        while len(self._replicas) > self._capacity:
            self._replicas.popitem(last=False)

    def forget(self, replica: int) -> None:
        """Removes a replica's prefixes: its KV cache is lost."""
        kept = ((key, value) for key, value in self._replicas.items() if value != replica)
        self._replicas = OrderedDict(kept)

    def num_kept(self, prompt_ids: Sequence[int], cache_salt: str = "") -> dict[int, int]:
        """The number of this prompt's leading tokens that each replica computed recently."""
        kept: dict[int, int] = {}
        for number, key in enumerate(_chunk_keys(prompt_ids, cache_salt), start=1):
            replica = self._replicas.get(key)
            if replica is None:
                break
            kept[replica] = number * PREFIX_TOKENS
        return kept


def _chunk_keys(prompt_ids: Sequence[int], cache_salt: str) -> Iterator[int]:
    """The chained hashes of the prompt's full chunks, valid within this process."""
    key = hash(cache_salt)
    for start in _chunk_starts(len(prompt_ids)):
        key = hash((key, tuple(prompt_ids[start : start + PREFIX_TOKENS])))
        yield key


def _chunk_starts(num_tokens: int) -> Iterable[int]:
    num_chunks = min(num_tokens // PREFIX_TOKENS, MAX_PREFIX_CHUNKS)
    return range(0, num_chunks * PREFIX_TOKENS, PREFIX_TOKENS)
