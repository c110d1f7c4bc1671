"""The state of one sequence: its request, its tokens so far, and its slot allocation.

It decides nothing: the scheduler selects its queue and its next chunk.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum, auto
from typing import NamedTuple

from runtime.protocol.inference_types import FinishReason
from runtime.protocol.step import SampledToken, ScoredToken, SlotSampling
from scheduler.sequences.block_hashes import BlockHashes

DEFAULT_TTFT_SECONDS = 10.0
"""TTFT target of a prompt without one, so that every prompt has a deadline."""


@dataclass(frozen=True, slots=True)
class SequenceRequest:
    """One sequence to generate; `arrival` is in seconds on the caller's clock and orders them.

    `prompt_ids` is not empty, `max_tokens` is at least 1 and `sequence_id` is unique among the
    unfinished. A token in `stop_ids` ends the sequence and is still reported. Only sequences of
    one `cache_salt` share cached blocks; one that does not read the cache (because it needs
    an output at each position) has all positions computed. `is_score_only` requests only the
    prompt's log-probabilities: `max_tokens` is 1, and the token is discarded.

    The lowest `priority` number is served first, then the tenant with the smallest share, then the
    earliest deadline. Targets are seconds to the first token and from token to token, None for
    the policy's own; `deadline`, on `arrival`'s clock, is for the whole answer.
    """

    sequence_id: int
    prompt_ids: tuple[int, ...]
    sampling: SlotSampling
    max_tokens: int
    stop_ids: frozenset[int]
    arrival: float
    cache_salt: str = ""
    reads_prefix_cache: bool = True
    is_score_only: bool = False
    priority: int = 0
    tenant: str = ""
    ttft_target_seconds: float | None = None
    tpot_target_seconds: float | None = None
    deadline: float | None = None

    @property
    def first_token_due(self) -> float:
        """The deadline of the first token; the default target applies without one."""
        target = self.ttft_target_seconds
        due = self.arrival + (DEFAULT_TTFT_SECONDS if target is None else target)
        return due if self.deadline is None else min(due, self.deadline)


class TokenEvent(NamedTuple):
    """A new token of a sequence, with the finish reason if it is the last.

    A token with a `problem` is not a token; the sequence is removed.
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
    """The phase of an unfinished sequence; in all but WAITING it holds a slot and blocks.

    An IntEnum, because phases are looked up for every token and IntEnum hashes are fast.
    """

    WAITING = auto()
    PREFILL = auto()
    SAMPLING = auto()  # the chunk that samples its next token is in flight
    READY = auto()  # its newest token may be sent as a decode


@dataclass(slots=True, eq=False)
class SlotAllocation:
    """The allocation of a slot and its blocks to a sequence, from opening to release.

    `num_sent` counts the positions filled by sent steps, in flight or completed: steps run in
    order, so the next chunk starts there. It starts with the cached prefix. The blocks have
    `capacity` positions. `num_hashed` counts the blocks, from the
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
        """Whether the sequence still holds it; otherwise its results are dropped."""
        return self.sequence.allocation is self


@dataclass(slots=True, eq=False)
class TrackedSequence:
    """An unfinished sequence; `token_ids` is the prompt, then every token that was reported.

    `final_len` is its maximum length in tokens. `num_cached` is the number of positions that the
    prefix cache held at the last lookup, `num_shared` those of them held by other sequences, and
    `rank` its aged priority at that time.
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
        """Sort key by rank, then deadline, regardless of tenants; the most urgent is least."""
        return (self.rank, self.due_key)

    @property
    def num_sent(self) -> int:
        """Positions that the KV cache holds after all sent steps have run."""
        return self.allocation.num_sent if self.allocation is not None else self.num_cached

    @property
    def num_unsent(self) -> int:
        """Known tokens that are not yet sent; 1 for a decode."""
        allocation = self.allocation
        return len(self.token_ids) - (
            self.num_cached if allocation is None else allocation.num_sent
        )

    @property
    def num_generated(self) -> int:
        """Tokens reported so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    def block_hashes(self, num_blocks: int, block_size: int) -> Sequence[bytes]:
        """The hashes of at least the first `num_blocks` blocks, which its tokens fill."""
        return self._hashes.first(num_blocks, self.token_ids, block_size)

    def block_hash(self, index: int, block_size: int) -> bytes:
        """The hash of one block that its tokens fill."""
        return self.block_hashes(index + 1, block_size)[index]

    def start_epoch(self, final_len: int) -> None:
        """Discards the allocation and the hashes; the block size may change."""
        self.allocation = None
        self.final_len = final_len
        self.num_cached = self.num_shared = 0
        self._hashes = BlockHashes(self.request.cache_salt)

    def scored_positions(self, start: int, end: int) -> range:
        """The prompt positions that a chunk from `start` to `end` scores."""
        if self.request.sampling.num_prompt_logprobs is None:
            return range(0)
        return range(start + 1, min(end + 1, self.num_prompt_tokens))

    def accept(self, token_id: int) -> FinishReason | None:
        """Appends a sampled token; returns the finish reason if it is the last."""
        token_ids = self.token_ids
        token_ids.append(token_id)
        if token_id in self.stop_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(token_ids) >= self.final_len else None
