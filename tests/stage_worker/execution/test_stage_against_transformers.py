"""All splits, ranks and microbatchings in one process, compared with Transformers."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime.protocol.step import SlotSampling
from tests.stage_worker.local_pipeline import (
    EVERYTHING,
    WHOLE,
    LocalPipeline,
    Request,
    assert_all_match,
    make_prompt,
)
from tests.stage_worker.local_stages import RankedStage, load_ranked
from tests.tiny_models import TINY_LLAMAS, TinyModel, make_tiny_llama

SPLITS = ((4,), (2, 2), (1, 3), (1, 2, 1), (2, 1, 1), (1, 1, 1, 1))
PROMPT_LENGTHS = (1, 33, 7, 120, 8)

MakeModel = Callable[[str], TinyModel]
MakeStages = Callable[..., list[RankedStage]]


@pytest.fixture(scope="module")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> MakeModel:
    made: dict[str, TinyModel] = {}

    def make(name: str) -> TinyModel:
        if name not in made:
            made[name] = make_tiny_llama(tmp_path_factory.mktemp(name), name)
        return made[name]

    return make


@pytest.fixture(scope="module")
def make_stages(make_model: MakeModel) -> MakeStages:
    loaded: dict[tuple[str, tuple[int, ...], tuple[int, ...]], list[RankedStage]] = {}

    def make(
        name: str, split: Sequence[int], tp_sizes: Sequence[int] | None = None
    ) -> list[RankedStage]:
        model = make_model(name)
        extra = model.num_layers - sum(split)
        counts = (*split[:-1], split[-1] + extra)
        key = (name, counts, tuple(tp_sizes or [1] * len(split)))
        if key not in loaded:
            loaded[key] = load_ranked(model.folder, counts, tp_sizes=key[2])
        return loaded[key]

    return make


@contextmanager
def open_pipeline(stages: list[RankedStage]) -> Iterator[LocalPipeline]:
    pipeline = LocalPipeline(stages)
    yield pipeline
    pipeline.close()


@pytest.mark.parametrize("chunk_size", [1, 7, WHOLE])
@pytest.mark.parametrize("split", SPLITS, ids=str)
@pytest.mark.parametrize("name", TINY_LLAMAS)
def test_stage_mixed_batch_in_any_split_and_chunk_size_matches_transformers(
    name: str,
    split: tuple[int, ...],
    chunk_size: int,
    make_model: MakeModel,
    make_stages: MakeStages,
) -> None:
    requests = [
        Request(make_prompt(length, seed), num_tokens=5, sampling=EVERYTHING, start=2 * seed)
        for seed, length in enumerate(PROMPT_LENGTHS)
    ]
    with open_pipeline(make_stages(name, split)) as pipeline:
        assert_all_match(make_model(name), requests, pipeline, repeat(chunk_size))


@pytest.mark.parametrize("chunk_size", [300, WHOLE])
@pytest.mark.parametrize("name", ["tied_gqa", "llama3_gqa"])
def test_stage_prompt_of_three_thousand_tokens_matches_transformers(
    name: str, chunk_size: int, make_model: MakeModel, make_stages: MakeStages
) -> None:
    requests = [
        Request(make_prompt(3000), num_tokens=4, sampling=EVERYTHING),
        Request(make_prompt(40), num_tokens=12, sampling=EVERYTHING),
    ]
    with open_pipeline(make_stages(name, (1, 2, 1))) as pipeline:
        assert_all_match(make_model(name), requests, pipeline, repeat(chunk_size))


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_stage_any_microbatching_matches_transformers(
    data: st.DataObject, make_model: MakeModel, make_stages: MakeStages
) -> None:
    name = data.draw(st.sampled_from(sorted(TINY_LLAMAS)))
    split = data.draw(st.sampled_from(SPLITS))
    most_ranks = TINY_LLAMAS[name].num_kv_heads
    ranks = st.lists(st.integers(1, most_ranks), min_size=len(split), max_size=len(split))
    tp_sizes = data.draw(ranks)
    lengths = data.draw(st.lists(st.integers(1, 90), min_size=1, max_size=7))
    starts = data.draw(st.lists(st.integers(0, 12), min_size=len(lengths), max_size=len(lengths)))
    chunk_sizes = data.draw(st.lists(st.integers(1, 50), min_size=1, max_size=6))
    requests = [
        Request(make_prompt(length, seed), num_tokens=4, sampling=EVERYTHING, start=start)
        for seed, (length, start) in enumerate(zip(lengths, starts, strict=True))
    ]
    sizes = (size for sizes in repeat(chunk_sizes) for size in sizes)
    with open_pipeline(make_stages(name, split, tp_sizes)) as pipeline:
        assert_all_match(make_model(name), requests, pipeline, sizes)


def test_stage_same_request_alone_and_in_a_batch_samples_the_same_tokens(
    make_stages: MakeStages,
) -> None:
    sampling = SlotSampling(temperature=0.9, top_p=0.95, seed=11)
    request = Request(make_prompt(21), num_tokens=20, sampling=sampling)
    others = [Request(make_prompt(n, n), num_tokens=9, start=n % 5) for n in (3, 50, 12, 90)]
    tokens = []
    for split, batch in (((4,), [request]), ((1, 3), [request, *others]), ((2, 2), [request])):
        tp_sizes = range(1, len(split) + 1)
        with open_pipeline(make_stages("tied_gqa", split, tp_sizes)) as pipeline:
            sampled = pipeline.generate(batch, repeat(16))[0]
        tokens.append([token.token_id for token in sampled])
    assert tokens[0] == tokens[1] == tokens[2]
    assert len(set(tokens[0])) > 1
