"""A stage runner's checks before it computes, its state over epochs and its capacity."""

from dataclasses import replace
from itertools import repeat

import pytest
import torch
from torch import Tensor

from runtime.checkpoints.checkpoint import Checkpoint
from runtime.errors import (
    FrameError,
    NonFiniteLogitsError,
    NotEnoughMemoryError,
    PositionError,
    TokenOutOfVocabularyError,
)
from runtime.protocol.step import SequenceChunk, SlotOpening, SlotSampling, Step
from stage_worker.execution.stage_runner import StageRunner
from tests.stage_worker.local_pipeline import LocalPipeline, Request
from tests.stage_worker.local_stages import load_stages, make_spec
from tests.tiny_models import TinyModel, make_tiny_llama

HIDDEN_SIZE = 64


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_tiny_llama(tmp_path_factory.mktemp("tiny"), "tied_gqa")


@pytest.fixture
def stages(model: TinyModel) -> list[StageRunner]:
    stages = load_stages(model.folder, (2, 2))
    for stage in stages:
        stage.open_epoch(num_blocks=4, max_sequences=2)
    return stages


def make_step(*token_ids: int, number: int = 0, position: int = 0, sample: bool = True) -> Step:
    chunk = SequenceChunk(0, position, token_ids, (0,) if position == 0 else (), sample)
    openings = (SlotOpening(0, SlotSampling()),) if position == 0 else ()
    return Step(number, opened_slots=openings, chunks=(chunk,))


def no_progress(done: int, total: int) -> None:
    """A progress callback that does nothing."""


@pytest.mark.parametrize(
    "hidden_TH",
    [
        None,
        torch.zeros(2, HIDDEN_SIZE),
        torch.zeros(3, HIDDEN_SIZE - 1),
        torch.zeros(3 * HIDDEN_SIZE),
        torch.zeros(3, HIDDEN_SIZE, dtype=torch.bfloat16),
    ],
    ids=["none", "rows", "columns", "flat", "dtype"],
)
def test_stage_hidden_states_that_do_not_fit_raises(
    stages: list[StageRunner], hidden_TH: Tensor | None
) -> None:
    with pytest.raises(FrameError, match="hidden states"):
        stages[1].run(make_step(1, 2, 3), hidden_TH)


def test_stage_first_one_given_hidden_states_raises(stages: list[StageRunner]) -> None:
    with pytest.raises(FrameError, match="hidden states"):
        stages[0].run(make_step(1, 2, 3), torch.zeros(3, HIDDEN_SIZE))


def test_stage_token_outside_the_vocabulary_raises_on_the_first_stage_only(
    stages: list[StageRunner],
) -> None:
    step = make_step(1, 320, 3)
    with pytest.raises(TokenOutOfVocabularyError) as caught:
        stages[0].run(step, None)
    assert (caught.value.token_id, caught.value.vocab_size) == (320, 320)
    assert len(stages[1].run(step, torch.zeros(3, HIDDEN_SIZE)).sampled) == 1


def test_stage_wrong_position_raises_before_hidden_states_are_checked(
    stages: list[StageRunner],
) -> None:
    stages[1].run(make_step(1, 2), torch.zeros(2, HIDDEN_SIZE))
    with pytest.raises(PositionError):
        stages[1].run(make_step(5, number=1, position=1), None)


def test_stage_hidden_states_with_nan_raise_naming_the_slot(stages: list[StageRunner]) -> None:
    with pytest.raises(NonFiniteLogitsError) as caught:
        stages[1].run(make_step(1, 2), torch.full((2, HIDDEN_SIZE), torch.nan))
    assert caught.value.slot == 0


def test_stage_step_without_tokens_has_no_output(stages: list[StageRunner]) -> None:
    for stage in stages:
        output = stage.run(Step(0, opened_slots=(SlotOpening(1, SlotSampling()),)), None)
        assert (output.hidden_TH, output.sampled) == (None, ())
        assert stage.num_slots_used == 1
        stage.run(Step(1, released_slots=(1,)), None)
        assert stage.num_slots_used == 0


def test_stage_chunk_that_samples_nothing_runs_no_head(stages: list[StageRunner]) -> None:
    step = make_step(1, 2, sample=False)
    hidden_TH = stages[0].run(step, None).hidden_TH
    assert hidden_TH is not None
    assert (hidden_TH.shape, hidden_TH.dtype) == ((2, HIDDEN_SIZE), torch.float32)
    assert stages[1].run(step, hidden_TH).sampled == ()


def test_stage_run_does_not_change_its_input(stages: list[StageRunner]) -> None:
    hidden_TH = torch.randn(2, HIDDEN_SIZE)
    before = hidden_TH.clone()
    stages[1].run(make_step(1, 2), hidden_TH)
    assert torch.equal(hidden_TH, before)


def test_stage_new_epoch_after_an_error_computes_as_the_first(
    stages: list[StageRunner],
) -> None:
    requests = [Request((5, 6, 7, 8), num_tokens=6)]
    fresh = LocalPipeline(stages)
    expected = fresh.generate(requests, repeat(3))
    fresh.close()
    hidden_TH = torch.full((2, HIDDEN_SIZE), torch.nan)
    stages[1].open_epoch(num_blocks=4, max_sequences=2)
    with pytest.raises(NonFiniteLogitsError):
        stages[1].run(make_step(1, 2), hidden_TH)
    again = LocalPipeline(stages)
    assert again.generate(requests, repeat(3)) == expected
    again.close()


def test_stage_kv_capacity_counts_its_own_layers_only(model: TinyModel) -> None:
    block_bytes = 8 * 2 * 2 * 16 * 4
    for num_layers in (1, 3):
        spec = replace(make_spec(num_layers, of=4), kv_memory_bytes=100 * block_bytes)
        stage = StageRunner.load(Checkpoint.open(model.folder), spec, no_progress)
        assert stage.kv_block_capacity() == 100 // num_layers


def test_stage_kv_memory_below_one_block_raises_with_the_numbers(model: TinyModel) -> None:
    stage = StageRunner.load(
        Checkpoint.open(model.folder), replace(make_spec(4), kv_memory_bytes=1000), no_progress
    )
    with pytest.raises(NotEnoughMemoryError) as caught:
        stage.kv_block_capacity()
    assert caught.value.needed_bytes == 8 * 2 * 2 * 16 * 4 * 4
    assert caught.value.available_bytes == 1000


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_stage_reduced_precision_stays_near_the_reference(model: TinyModel, dtype: str) -> None:
    sampling = SlotSampling(num_logprobs=320)
    stage = StageRunner.load(
        Checkpoint.open(model.folder), replace(make_spec(4), dtype=dtype), no_progress
    )
    prompt = tuple(range(3, 40))
    pipeline = LocalPipeline([stage])
    token = pipeline.generate([Request(prompt, sampling=sampling)], repeat(10))[0][0]
    pipeline.close()
    actual_V = torch.empty(320)
    actual_V[list(token.top_ids)] = torch.tensor(token.top_logprobs)
    expected_V = model.logprobs(prompt)[-1]
    assert (actual_V - expected_V).abs().max() < 0.05 * expected_V.abs().max()
