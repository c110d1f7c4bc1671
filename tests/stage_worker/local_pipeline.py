"""A pipeline of stages in one process, and the comparison of its tokens with Transformers.

`LocalPipeline` replaces scheduler and streams: it allocates slots and blocks, splits prompts into
chunks, and checks at the end that all are released.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from runtime.protocol.step import (
    SampledToken,
    ScoredToken,
    SequenceChunk,
    SlotOpening,
    SlotSampling,
    Step,
)
from stage_worker.execution.stage_runner import StageRunner
from stage_worker.execution.stage_spec import StageOutput
from tests.stage_worker.local_stages import RankedStage
from tests.tiny_models import TinyModel

TOLERANCE = 1e-4
WHOLE = 10_000
EVERYTHING = SlotSampling(num_logprobs=WHOLE)


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt that starts at step `start` and generates `num_tokens` tokens."""

    prompt_ids: tuple[int, ...]
    num_tokens: int = 1
    sampling: SlotSampling = SlotSampling()
    start: int = 0


@dataclass(slots=True)
class Running:
    """A request in its slot; `token_ids` are its prompt and generated tokens."""

    request: Request
    slot: int
    token_ids: list[int]
    num_cached: int = 0
    block_ids: list[int] = field(default_factory=list)
    sampled: list[SampledToken] = field(default_factory=list)
    scored: list[ScoredToken] = field(default_factory=list)

    @property
    def is_finished(self) -> bool:
        return len(self.sampled) == self.request.num_tokens


class LocalPipeline:
    """A replica of the stages in one epoch; blocks are allocated in a shuffled order."""

    def __init__(
        self,
        stages: Sequence[StageRunner | RankedStage],
        num_blocks: int = 600,
        max_sequences: int = 8,
    ):
        self._stages = stages
        self._block_size = stages[0].spec.block_size
        for stage in stages:
            stage.open_epoch(num_blocks, max_sequences)
        self._free_blocks = list(range(num_blocks))
        random.Random(num_blocks).shuffle(self._free_blocks)
        self._free_slots = list(range(max_sequences))
        self._num_steps = 0
        self._released: list[int] = []

    def generate(
        self, requests: Sequence[Request], chunk_sizes: Iterable[int]
    ) -> list[list[SampledToken]]:
        """Runs all requests; each step's chunks have the next size of `chunk_sizes`."""
        return [done.sampled for done in self.run(requests, chunk_sizes)]

    def run(self, requests: Sequence[Request], chunk_sizes: Iterable[int]) -> list[Running]:
        """The same, and returns the requests with all their results, in order."""
        waiting = list(requests)
        running: list[Running] = []
        finished: dict[int, Running] = {}
        sizes = iter(chunk_sizes)
        step = 0
        while waiting or running:
            started = [request for request in waiting if request.start <= step]
            waiting = [request for request in waiting if request.start > step]
            opened = [self._start(request) for request in started]
            running += opened
            if running:
                self._step(running, opened, next(sizes))
            for done in [sequence for sequence in running if sequence.is_finished]:
                running.remove(done)
                self.release(done)
                finished[id(done.request)] = done
            step += 1
        return [finished[id(request)] for request in requests]

    def release(self, sequence: Running) -> None:
        """Releases the sequence's slot and blocks in the next step."""
        self._released.append(sequence.slot)
        self._free_slots.append(sequence.slot)
        self._free_blocks += sequence.block_ids

    def close(self) -> None:
        """Releases the remaining slots and checks that no stage holds any."""
        self._run(Step(self._num_steps, released_slots=tuple(self._released)))
        for stage in self._stages:
            assert stage.num_slots_used == 0
            assert stage.num_blocks_used == 0
            if isinstance(stage, RankedStage):
                stage.close()

    def _start(self, request: Request) -> Running:
        return Running(request, self._free_slots.pop(0), list(request.prompt_ids))

    def _step(self, running: list[Running], opened: list[Running], chunk_size: int) -> None:
        chunks = tuple(self._chunk(sequence, chunk_size) for sequence in running)
        openings = tuple(SlotOpening(new.slot, new.request.sampling) for new in opened)
        output = self._run(Step(self._num_steps, tuple(self._released), openings, chunks))
        self._num_steps += 1
        self._released = []
        by_slot = {sequence.slot: sequence for sequence in running}
        for scored in output.scored:
            by_slot[scored.slot].scored.append(scored)
        for token in output.sampled:
            by_slot[token.slot].sampled.append(token)
            by_slot[token.slot].token_ids.append(token.token_id)

    def _chunk(self, sequence: Running, chunk_size: int) -> SequenceChunk:
        begin = sequence.num_cached
        end = min(begin + chunk_size, len(sequence.token_ids))
        num_new = -(-end // self._block_size) - len(sequence.block_ids)
        new_block_ids = tuple(self._free_blocks.pop(0) for _ in range(num_new))
        sequence.block_ids += new_block_ids
        sequence.num_cached = end
        token_ids = tuple(sequence.token_ids[begin:end])
        is_whole = end == len(sequence.token_ids)
        following = None if is_whole else sequence.token_ids[end]
        return SequenceChunk(
            sequence.slot, begin, token_ids, new_block_ids, is_whole, next_token_id=following
        )

    def _run(self, step: Step) -> StageOutput:
        hidden_TH = None
        for stage in self._stages:
            output = stage.run(step, hidden_TH)
            hidden_TH = output.hidden_TH
        return output


def make_prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(
        (seed * 7919 + index * index * 31 + 13 * index + 3) % 320 for index in range(length)
    )


def assert_matches(model: TinyModel, request: Request, sampled: Sequence[SampledToken]) -> None:
    """Checks that log-probabilities of the whole vocabulary are close, and greedy tokens equal.

    A different token is accepted only if the reference's two most likely are within tolerance.
    """
    assert len(sampled) == request.num_tokens
    generated = tuple(token.token_id for token in sampled)
    expected_TV = model.logprobs((*request.prompt_ids, *generated[:-1]))
    expected_TV = expected_TV[len(request.prompt_ids) - 1 :]
    bound = TOLERANCE * expected_TV.abs().max()
    for token, expected_V in zip(sampled, expected_TV, strict=True):
        actual_V = torch.empty_like(expected_V)
        actual_V[list(token.top_ids)] = torch.tensor(token.top_logprobs)
        assert (actual_V - expected_V).abs().max() <= bound
        assert abs(token.logprob - float(actual_V[token.token_id])) <= 1e-5
        best, second = expected_V.topk(2).values
        assert token.token_id == int(expected_V.argmax()) or best - second <= bound


def assert_all_match(
    model: TinyModel,
    requests: Sequence[Request],
    pipeline: LocalPipeline,
    chunk_sizes: Iterator[int],
) -> None:
    for request, sampled in zip(requests, pipeline.generate(requests, chunk_sizes), strict=True):
        assert_matches(model, request, sampled)
