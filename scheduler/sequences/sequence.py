"""Owns one sequence's truth: its request, its tokens so far, and where its KV cache lies.

It decides nothing: which queue a sequence stands in and what it runs next is the scheduler's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum, auto
from typing import NamedTuple

from runtime.protocol.inference_types import FinishReason
from runtime.protocol.step import SampledToken, ScoredToken, SlotSampling
from scheduler.sequences.block_hashes import BlockHashes

DEFAULT_TTFT_SECONDS = 10.0
"""What a prompt without a target is taken to be content with, so that it has a deadline too."""


@dataclass(frozen=True, slots=True)
class SequenceRequest:
    """One sequence to generate; `arrival` is in seconds on the caller's clock and orders them.

    `prompt_ids` is not empty, `max_tokens` is at least 1 and `sequence_id` is unique among the
    unfinished. A token in `stop_ids` ends the sequence and is still reported. Only sequences of
    one `cache_salt` share cached blocks; one that does not read the cache (because it wants
    something of each of its positions) has all of them computed.

    The lowest number of `priority` is served first, tenants get even shares, and the earliest
    deadline comes first within both. Targets are seconds to the first token and from token to
    token, None for the policy's own; `deadline`, on `arrival`'s clock, is for the whole answer.
    """

    sequence_id: int
    prompt_ids: tuple[int, ...]
    sampling: SlotSampling
    max_tokens: int
    stop_ids: frozenset[int]
    arrival: float
    cache_salt: str = ""
    reads_prefix_cache: bool = True
    priority: int = 0
    tenant: str = ""
    ttft_target_seconds: float | None = None
    tpot_target_seconds: float | None = None
    deadline: float | None = None

    @property
    def first_token_due(self) -> float:
        """When its first token is wanted; without a target, as if that were a common one."""
        target = self.ttft_target_seconds
        due = self.arrival + (DEFAULT_TTFT_SECONDS if target is None else target)
        return due if self.deadline is None else min(due, self.deadline)


class TokenEvent(NamedTuple):
    """A new token of a sequence, and why it was the last if it was.

    A token with a `problem` is none; the sequence is gone.
    """

    sequence_id: int
    token: SampledToken
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True)
class ScoreEvent:
    """Tokens of a sequence's prompt with their log-probabilities; again after it lost its slot."""

    sequence_id: int
    tokens: tuple[ScoredToken, ...]


class SequencePhase(IntEnum):
    """Where an unfinished sequence stands; all but WAITING hold a slot and blocks.

    Integers, because every token looks phases up and the hash of other enums is Python code.
    """

    WAITING = auto()
    PREFILL = auto()
    SAMPLING = auto()  # the chunk that draws its next token is in flight
    READY = auto()  # its newest token may be sent as a decode


@dataclass(slots=True, eq=False)
class SlotAllocation:
    """One stay of a sequence in a slot, from its opening to its release.

    `num_sent` counts the positions that steps sent so far fill, in flight or done: steps run in
    order, so the next chunk starts there. It begins with what the prefix cache had. Its blocks
    have `capacity` positions. `num_hashed` counts the blocks, from the
    first, that others may share. A result belongs to an allocation, not to a slot.
    """

    sequence: "TrackedSequence" = field(repr=False)
    slot: int
    block_ids: list[int]
    capacity: int
    num_sent: int = 0
    num_hashed: int = 0

    @property
    def is_live(self) -> bool:
        """Whether it still lasts; else what comes for it is dropped."""
        return self.sequence.allocation is self


@dataclass(slots=True, eq=False)
class TrackedSequence:
    """An unfinished sequence; `token_ids` is the prompt, then every token that was reported.

    `final_len` is the number of tokens at which it ends for want of room or of permission.
    `num_cached` is how many positions the prefix cache had when it was last looked at, `num_shared`
    how many of them others held, and `rank` its priority as aged then.
    """

    request: SequenceRequest
    token_ids: list[int]
    final_len: int
    phase: SequencePhase = SequencePhase.WAITING
    allocation: SlotAllocation | None = None
    first_token_at: float | None = None
    num_cached: int = 0
    num_shared: int = 0
    is_charged: bool = False
    rank: int = field(init=False)
    # The request's, kept here because steps ask often.
    sequence_id: int = field(init=False)
    num_prompt_tokens: int = field(init=False)
    tenant: str = field(init=False)
    stop_ids: frozenset[int] = field(init=False)
    first_token_due: float = field(init=False)
    due_key: tuple[float, float, int] = field(init=False)
    _hashes: BlockHashes = field(init=False)

    def __post_init__(self) -> None:
        request = self.request
        self.sequence_id = request.sequence_id
        self.num_prompt_tokens = len(request.prompt_ids)
        self.tenant = request.tenant
        self.stop_ids = request.stop_ids
        self.rank = request.priority
        self.first_token_due = request.first_token_due
        self.due_key = (self.first_token_due, request.arrival, request.sequence_id)
        self._hashes = BlockHashes(self.request.cache_salt)

    @property
    def urgency_key(self) -> tuple[int, tuple[float, float, int]]:
        """Sorts the most urgent first, without regard to tenants: by rank, then by deadline."""
        return (self.rank, self.due_key)

    @property
    def num_sent(self) -> int:
        """Positions of it that the KV cache holds once all sent steps have run."""
        return self.allocation.num_sent if self.allocation is not None else self.num_cached

    @property
    def num_unsent(self) -> int:
        """Known tokens still to be computed; 1 for a decode."""
        allocation = self.allocation
        return len(self.token_ids) - (
            self.num_cached if allocation is None else allocation.num_sent
        )

    @property
    def num_generated(self) -> int:
        """Tokens reported so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    def block_hashes(self, num_blocks: int, block_size: int) -> Sequence[bytes]:
        """The names of at least so many blocks that its tokens fill, from the first."""
        return self._hashes.first(num_blocks, self.token_ids, block_size)

    def block_hash(self, index: int, block_size: int) -> bytes:
        """The name of a block that its tokens fill."""
        return self.block_hashes(index + 1, block_size)[index]

    def start_epoch(self, final_len: int) -> None:
        """Forgets where it lay; blocks may have another size from now on."""
        self.allocation = None
        self.final_len = final_len
        self.num_cached = self.num_shared = 0
        self._hashes = BlockHashes(self.request.cache_salt)

    def scored_positions(self, start: int, end: int) -> range:
        """Positions of the prompt that a chunk from `start` to `end` scores: each after a row."""
        if self.request.sampling.num_prompt_logprobs is None:
            return range(0)
        return range(start + 1, min(end + 1, self.num_prompt_tokens))

    def accept(self, token_id: int) -> FinishReason | None:
        """Appends a token that was drawn and says whether it was the last."""
        token_ids = self.token_ids
        token_ids.append(token_id)
        if token_id in self.stop_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(token_ids) >= self.final_len else None
