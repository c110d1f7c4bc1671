"""Stages split over ranks, evenly or not: their results, and each rank's shares."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import repeat

import pytest
import torch

from runtime.checkpoints.checkpoint import Checkpoint
from runtime.errors import EpochEndedError, FrameError, HeaderMismatchError, TooManyRanksError
from runtime.protocol.step import SequenceChunk, SlotOpening, SlotSampling, Step
from stage_worker.execution.stage_runner import StageRunner
from stage_worker.loading.reference_logprobs import reference_logprobs
from tests.stage_worker.collectives.rank_threads import open_groups, run_ranks
from tests.stage_worker.local_pipeline import (
    EVERYTHING,
    WHOLE,
    LocalPipeline,
    Request,
    assert_all_match,
    make_prompt,
)
from tests.stage_worker.local_stages import RankedStage, load_ranked, make_spec
from tests.tiny_models import TinyModel, make_tiny_llama

MakeModel = Callable[[str], TinyModel]


@pytest.fixture(scope="module")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> MakeModel:
    made: dict[str, TinyModel] = {}

    def make(name: str) -> TinyModel:
        if name not in made:
            made[name] = make_tiny_llama(tmp_path_factory.mktemp(name), name)
        return made[name]

    return make


@pytest.mark.parametrize("chunk_size", [7, WHOLE])
@pytest.mark.parametrize(
    ("name", "tp_sizes"),
    [
        ("nine_of_three", (2,)),
        ("nine_of_three", (3,)),
        ("nine_of_three", (2, 1, 3)),
        ("nine_of_three", (3, 2)),
        ("untied_mha_bias", (3,)),
        ("untied_mha_bias", (4, 2)),
        ("llama3_gqa", (2, 2)),
    ],
    ids=str,
)
def test_ranks_with_any_shares_match_transformers(
    name: str, tp_sizes: tuple[int, ...], chunk_size: int, make_model: MakeModel
) -> None:
    """Case 22 (dllama#139, #98): heads that do not divide get uneven shares."""
    model = make_model(name)
    layers = [1] * (len(tp_sizes) - 1)
    counts = (*layers, model.num_layers - sum(layers))
    requests = [
        Request(make_prompt(length, seed), num_tokens=5, sampling=EVERYTHING, start=2 * seed)
        for seed, length in enumerate((1, 33, 7, 120, 8))
    ]
    pipeline = LocalPipeline(load_ranked(model.folder, counts, tp_sizes=tp_sizes))
    assert_all_match(model, requests, pipeline, repeat(chunk_size))
    pipeline.close()


@pytest.mark.parametrize("overlap", ["auto", "on"])
def test_ranks_long_prompt_in_pieces_through_the_buffer_matches_transformers(
    overlap: str, make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model("nine_of_three")
    monkeypatch.setattr("stage_worker.collectives.shared_memory.PIECE_BYTES", 4096)
    monkeypatch.setattr("stage_worker.execution.output_head._MAX_LOGITS", 320)
    requests = [
        Request(make_prompt(900, seed), num_tokens=3, sampling=EVERYTHING) for seed in range(3)
    ]
    stages = load_ranked(model.folder, (2, 2), tp_sizes=(2, 3), overlap=overlap)
    pipeline = LocalPipeline(stages)
    assert_all_match(model, requests, pipeline, repeat(200))
    pipeline.close()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_ranks_in_reduced_precision_stay_near_the_reference(
    dtype: str, make_model: MakeModel
) -> None:
    model, prompt = make_model("nine_of_three"), make_prompt(31)
    checkpoint = Checkpoint.open(model.folder)
    specs = [replace(make_spec(4, rank=rank, tp_size=3), dtype=dtype) for rank in range(3)]
    ranks = [StageRunner.load(checkpoint, spec, lambda done, total: None) for spec in specs]
    pipeline = LocalPipeline([RankedStage(ranks)])
    ((token,),) = pipeline.generate([Request(prompt, sampling=EVERYTHING)], repeat(10))
    pipeline.close()
    expected_V = model.logprobs(prompt)[-1]
    actual_V = torch.empty_like(expected_V)
    actual_V[list(token.top_ids)] = torch.tensor(token.top_logprobs)
    assert (actual_V - expected_V).abs().max() < 0.05 * expected_V.abs().max()


def test_ranks_match_the_reference_logprobs(make_model: MakeModel) -> None:
    model, prompt = make_model("nine_of_three"), make_prompt(25)
    top_ids, top_logprobs = reference_logprobs(
        Checkpoint.open(model.folder), prompt, 10, lambda done, total: None
    )
    pipeline = LocalPipeline(load_ranked(model.folder, (2, 2), tp_sizes=(2, 3)))
    ((token,),) = pipeline.generate([Request(prompt, sampling=EVERYTHING)], repeat(WHOLE))
    pipeline.close()
    assert token.top_ids[:10] == top_ids
    assert token.top_logprobs[:10] == pytest.approx(top_logprobs, abs=1e-4)


def test_stage_load_more_ranks_than_heads_is_refused_with_the_numbers(
    make_model: MakeModel,
) -> None:
    """Case 22 (dllama#139, #98)."""
    checkpoint = Checkpoint.open(make_model("nine_of_three").folder)
    with pytest.raises(TooManyRanksError) as caught:
        StageRunner.load(checkpoint, make_spec(4, tp_size=4), lambda done, total: None)
    assert (caught.value.tp_size, caught.value.num_kv_heads, caught.value.num_heads) == (4, 3, 9)


def test_ranks_hold_their_shares_of_weights_and_cache(make_model: MakeModel) -> None:
    folder = make_model("nine_of_three").folder
    ((whole,), ranks) = (load_ranked(folder, (4,), tp_sizes=(size,))[0].ranks for size in (1, 3))
    norm_bytes = (2 * 4 + 1) * 72 * 4
    total = sum(rank.weights_bytes for rank in ranks)
    assert total == whole.weights_bytes + 2 * norm_bytes
    assert max(rank.weights_bytes for rank in ranks) < 0.36 * whole.weights_bytes
    assert {rank.kv_block_capacity() // 3 for rank in ranks} == {whole.kv_block_capacity()}


def test_ranks_with_uneven_heads_hold_as_many_blocks_as_their_heads_allow(
    make_model: MakeModel,
) -> None:
    folder = make_model("nine_of_three").folder
    first, second = load_ranked(folder, (4,), tp_sizes=(2,))[0].ranks
    assert second.kv_block_capacity() == 2 * first.kv_block_capacity()


@pytest.fixture
def stage(make_model: MakeModel) -> RankedStage:
    """The last stage of two, of two ranks."""
    return load_ranked(make_model("tied_gqa").folder, (2, 2), tp_sizes=(1, 2))[1]


def open_slot(number: int, slot: int, **sampling: float) -> Step:
    opening = SlotOpening(slot, SlotSampling(**sampling))  # type: ignore[arg-type]
    return Step(number, opened_slots=(opening,))


def run_each(
    stage: RankedStage, steps: tuple[Step, Step], *inputs: torch.Tensor | None
) -> list[object]:
    groups = open_groups(2)
    calls = []
    for rank, group, step, part in zip(stage.ranks, groups, steps, inputs, strict=True):
        rank.open_epoch(4, 2, group)
        calls.append(lambda rank=rank, step=step, part=part: rank.run(step, part))
    outs = run_ranks(calls)
    for group in groups:
        group.close()
    return outs


def test_rank_that_refuses_its_step_ends_it_on_all_ranks_with_both_values(
    stage: RankedStage,
) -> None:
    step = open_slot(0, 1)
    outs = run_each(stage, (step, step), None, torch.zeros(1, 31))
    assert isinstance(outs[1], FrameError)
    assert isinstance(outs[0], EpochEndedError)
    assert outs[0].cause == "frame"
    assert outs[0].detail == f"rank 1: {outs[1]}"


def test_rank_with_a_different_header_ends_the_step_on_all_ranks(stage: RankedStage) -> None:
    outs = run_each(stage, (open_slot(0, 1), open_slot(0, 1, temperature=0.5)), None, None)
    assert all(isinstance(out, HeaderMismatchError) for out in outs)


def test_rank_in_a_collective_ends_when_another_aborts(stage: RankedStage) -> None:
    """Rank 1 accepts the step and then aborts; no rank hangs."""
    sampling = SlotSampling()
    chunk = SequenceChunk(0, 0, (1, 2, 3), new_block_ids=(0,), sample=True)
    step = Step(0, opened_slots=(SlotOpening(0, sampling),), chunks=(chunk,))
    waiting, leaving = open_groups(2)
    first, _ = stage.ranks
    first.open_epoch(4, 2, waiting)

    def leave() -> None:
        leaving.agree(step, None)
        leaving.abort(EpochEndedError(cause="sender_gone", detail="a stream broke"))

    outs = run_ranks([partial(first.run, step, torch.zeros(3, 32)), leave])
    for group in (waiting, leaving):
        group.close()
    assert isinstance(outs[0], EpochEndedError)
    assert outs[0].cause == "sender_gone"
