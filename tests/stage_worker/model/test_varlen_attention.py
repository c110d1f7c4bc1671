"""The one-call attention of CUDA devices and its graphs, as far as a CPU can test them.

The kernel is written out (`varlen_reference.py`), a graph computes anew; plans, tables, windows and
padding are the real ones, and Transformers is the reference.
"""

from itertools import repeat
from pathlib import Path

import pytest
import torch
from torch.nn.attention import varlen

from stage_worker.execution import stage_runner as stage_module
from stage_worker.execution.cuda_graphs import DecodeGraphs
from stage_worker.model.kv_cache import BlockShape
from stage_worker.model.varlen_attention import AttentionKernel, choose_kernel
from tests.stage_worker.local_pipeline import (
    EVERYTHING,
    WHOLE,
    LocalPipeline,
    Request,
    assert_all_match,
    make_prompt,
)
from tests.stage_worker.local_stages import load_ranked, load_stages
from tests.stage_worker.model.varlen_reference import EagerGraph, varlen_attn
from tests.tiny_models import TinyModel, make_tiny_llama

PROMPT_LENGTHS = (1, 33, 7, 60, 8)
BLOCK_SHAPE = BlockShape(16, 2, 64, torch.bfloat16)


@pytest.fixture(params=["untied_mha_bias", "tied_gqa"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> TinyModel:
    return make_tiny_llama(tmp_path, request.param)


def requests(num_tokens: int = 5) -> list[Request]:
    return [
        Request(make_prompt(length, seed), num_tokens, EVERYTHING, start=2 * seed)
        for seed, length in enumerate(PROMPT_LENGTHS)
    ]


def use(monkeypatch: pytest.MonkeyPatch, kernel: AttentionKernel) -> None:
    """Stages use the CPU implementation of `kernel`."""
    monkeypatch.setattr(varlen, "varlen_attn", varlen_attn)
    monkeypatch.setattr(stage_module, "choose_kernel", lambda *_, **__: kernel)


@pytest.mark.parametrize("chunk_size", [1, 7, WHOLE])
@pytest.mark.parametrize("kernel", [AttentionKernel.GATHERED, AttentionKernel.PAGED])
def test_varlen_mixed_batch_matches_transformers(
    monkeypatch: pytest.MonkeyPatch, model: TinyModel, kernel: AttentionKernel, chunk_size: int
) -> None:
    use(monkeypatch, kernel)
    monkeypatch.setattr(DecodeGraphs, "covers", lambda self, plan: False)
    pipeline = LocalPipeline(load_stages(model.folder, (1, model.num_layers - 1)))
    assert_all_match(model, requests(), pipeline, repeat(chunk_size))
    pipeline.close()


def test_varlen_in_slices_of_two_ranks_matches_transformers(
    monkeypatch: pytest.MonkeyPatch, model: TinyModel
) -> None:
    use(monkeypatch, AttentionKernel.PAGED)
    stages = load_ranked(model.folder, (1, model.num_layers - 1), tp_sizes=(2, 2), overlap="on")
    pipeline = LocalPipeline(stages)
    assert_all_match(model, requests(), pipeline, repeat(WHOLE))
    pipeline.close()


def test_decode_graphs_padded_to_their_bucket_match_transformers(
    monkeypatch: pytest.MonkeyPatch, model: TinyModel
) -> None:
    use(monkeypatch, AttentionKernel.PAGED)
    graphs: list[EagerGraph] = []

    def capture(self: DecodeGraphs, bucket: int) -> tuple[EagerGraph, torch.Tensor]:
        graphs.append(EagerGraph(self._forward, bucket))
        return graphs[-1], graphs[-1].output

    monkeypatch.setattr(DecodeGraphs, "_capture", capture)
    pipeline = LocalPipeline(load_stages(model.folder, (1, model.num_layers - 1)))
    assert_all_match(model, requests(num_tokens=12), pipeline, repeat(WHOLE))
    pipeline.close()
    # Batches of three and of five sequences are padded.
    assert {graph._bucket for graph in graphs} >= {1, 2, 4, 8}
    assert all(graph.num_replays for graph in graphs)


@pytest.mark.parametrize(
    ("device", "dtype", "has_soft_cap"),
    [
        ("cpu", torch.bfloat16, False),
        ("cuda", torch.float32, False),
        ("cuda", torch.bfloat16, True),
    ],
)
def test_choose_kernel_unsupported_case_does_not_run_the_kernel(
    device: str, dtype: torch.dtype, has_soft_cap: bool
) -> None:
    shape = BlockShape(16, 2, 64, dtype)
    chosen = choose_kernel(shape, 4, torch.device(device), has_soft_cap=has_soft_cap)
    assert chosen is AttentionKernel.SDPA
