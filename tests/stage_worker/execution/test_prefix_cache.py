"""Blocks shared by several slots: the scheduler over real stages, against Transformers."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scheduler import FixedPolicy, Scheduler, SchedulerLimits, SequenceRequest
from stage_worker.execution.stage_runner import StageRunner
from tests.stage_worker.local_pipeline import EVERYTHING, Request, assert_matches, make_prompt
from tests.stage_worker.local_stages import load_stages
from tests.tiny_models import TinyModel, make_tiny_llama

if TYPE_CHECKING:
    from runtime.protocol.step import SampledToken

SYSTEM = make_prompt(30, seed=1)
PROMPTS = (
    *(SYSTEM + make_prompt(9, seed=2),) * 3,  # choices of one prompt
    SYSTEM + make_prompt(1, seed=3),
    SYSTEM[:24],
    make_prompt(12, seed=4),
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_tiny_llama(Path(tmp_path_factory.mktemp("tiny")), "tied_gqa")


class ScheduledPipeline:
    """Stages that run a scheduler's steps, a few steps after it makes them."""

    def __init__(self, stages: list[StageRunner], num_blocks: int, prefix_caching: bool) -> None:
        limits = SchedulerLimits(
            num_blocks=num_blocks,
            block_size=8,
            max_sequences=4,
            max_step_tokens=16,
            max_model_len=128,
            num_steps_in_flight=2,
            max_waiting=100,
            prefix_caching=prefix_caching,
        )
        self.scheduler = Scheduler(limits, FixedPolicy(16))
        self.stages = stages
        self.tokens: dict[int, list[SampledToken]] = {}
        for stage in stages:
            stage.open_epoch(num_blocks, limits.max_sequences)

    def generate(self, prompts: dict[int, tuple[int, ...]], num_tokens: int) -> None:
        for sequence_id, prompt in prompts.items():
            self.tokens[sequence_id] = []
            self.scheduler.add(
                SequenceRequest(
                    sequence_id=sequence_id,
                    prompt_ids=prompt,
                    sampling=EVERYTHING,
                    max_tokens=num_tokens,
                    stop_ids=frozenset(),
                    arrival=float(sequence_id),
                )
            )
        sent = []
        while self.scheduler.has_work:
            while (step := self.scheduler.schedule(0.0)) is not None:
                sent.append(step)
            oldest = sent.pop(0)
            hidden_TH = None
            for stage in self.stages:
                output = stage.run(oldest, hidden_TH)
                hidden_TH = output.hidden_TH
            for event in self.scheduler.update(oldest.number, output.sampled, 0.0):
                self.tokens[event.sequence_id].append(event.token)
        self.scheduler.check_integrity()
        for stage in self.stages:
            assert (stage.num_slots_used, stage.num_blocks_used) == (0, 0)


@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("num_blocks", [200, 14], ids=["roomy", "preempting"])
def test_prompts_with_common_prefixes_match_transformers(
    model: TinyModel, prefix_caching: bool, num_blocks: int
) -> None:
    pipeline = ScheduledPipeline(load_stages(model.folder, (2, 2)), num_blocks, prefix_caching)
    pipeline.generate(dict(enumerate(PROMPTS)), num_tokens=20)
    for sequence_id, prompt in enumerate(PROMPTS):
        assert_matches(model, Request(prompt, 20), pipeline.tokens[sequence_id])
    answer = tuple(token.token_id for token in pipeline.tokens[0])
    turn = PROMPTS[0] + answer + make_prompt(5, seed=5)
    pipeline.generate({100: turn}, num_tokens=6)
    assert_matches(model, Request(turn, 6), pipeline.tokens[100])
    scheduler = pipeline.scheduler
    assert (scheduler.num_hit_tokens > 0) is prefix_caching
    assert (scheduler.num_preemptions > 0) is (num_blocks == 14)
