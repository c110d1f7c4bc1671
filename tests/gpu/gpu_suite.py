"""The stage on a GPU against Transformers, its kernels against each other, and a mesh of it.

`tests/gpu/check.sh` runs it; its name keeps it out of other runs, because it needs a GPU.
"""

from dataclasses import replace
from itertools import accumulate, repeat
from pathlib import Path

import pytest
import torch

from runtime.checkpoints.checkpoint import Checkpoint
from stage_worker.execution import stage_runner as stage_module
from stage_worker.execution.cuda_graphs import DecodeGraphs
from stage_worker.execution.stage_runner import StageRunner
from stage_worker.model.kv_cache import BlockShape
from stage_worker.model.varlen_attention import AttentionKernel, choose_kernel
from stagemesh import Chat, ChatMessage, GenerationRequest
from tests.integration.processes import serving
from tests.stage_worker.local_pipeline import (
    EVERYTHING,
    WHOLE,
    LocalPipeline,
    Request,
    assert_all_match,
    make_prompt,
)
from tests.stage_worker.local_stages import make_spec
from tests.tiny_families import TINY_FAMILIES, make_tiny_family
from tests.tiny_models import make_tiny_llama

pytestmark = pytest.mark.timeout(120)

PROMPT_LENGTHS = (1, 33, 7, 60, 8)
# Of SmolLM2-135M-Instruct, greedy in float32, by transformers.
ANSWER = "1. Stay hydrated: Drink plenty of water"


@pytest.fixture(scope="session", autouse=True)
def _gpu() -> None:
    if not torch.cuda.is_available():
        pytest.exit("this suite needs a CUDA device", 1)
    # Sums in float32, as the reference on the CPU has them.
    torch.backends.cuda.matmul.allow_tf32 = False


def requests(num_tokens: int = 12) -> list[Request]:
    return [
        Request(make_prompt(length, seed), num_tokens, EVERYTHING, start=2 * seed)
        for seed, length in enumerate(PROMPT_LENGTHS)
    ]


def load(
    folder: Path, counts: tuple[int, ...], dtype: str, max_model_len: int
) -> list[StageRunner]:
    checkpoint, first_layers = Checkpoint.open(folder), accumulate(counts, initial=0)
    specs = [
        replace(make_spec(count, first, sum(counts), max_model_len), device="cuda", dtype=dtype)
        for count, first in zip(counts, first_layers, strict=False)
    ]
    return [StageRunner.load(checkpoint, spec, lambda done, total: None) for spec in specs]


@pytest.mark.parametrize("name", TINY_FAMILIES)
def test_family_in_float32_matches_transformers(name: str, tmp_path: Path) -> None:
    model, family = make_tiny_family(tmp_path, name), TINY_FAMILIES[name]
    pipeline = LocalPipeline(load(model.folder, (1, 3), "float32", family.max_model_len))
    assert_all_match(model, requests(), pipeline, repeat(WHOLE))
    pipeline.close()


def test_kernel_of_this_gpu_is_one_call_a_step() -> None:
    shape = BlockShape(16, 8, 128, torch.bfloat16)
    kernel = choose_kernel(shape, 32, torch.device("cuda"), has_soft_cap=False)
    assert kernel is not AttentionKernel.SDPA


def test_kernels_and_graphs_agree_in_bfloat16(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = make_tiny_llama(tmp_path, "tied_gqa")
    stages = load(model.folder, (1, model.num_layers - 1), "bfloat16", 4096)

    def logprobs() -> list[list[float]]:
        pipeline = LocalPipeline(stages)
        answers = pipeline.generate(requests(), repeat(WHOLE))
        pipeline.close()
        return [[token.logprob for token in answer] for answer in answers]

    chosen = logprobs()
    monkeypatch.setattr(DecodeGraphs, "covers", lambda self, plan: False)
    without_graphs = logprobs()
    monkeypatch.setattr(stage_module, "choose_kernel", lambda *_, **__: AttentionKernel.SDPA)
    for plain, eager, ours in zip(logprobs(), without_graphs, chosen, strict=True):
        # The first two tokens': later ones may follow another greedy path after a near tie.
        assert plain[:2] == pytest.approx(ours[:2], abs=0.05)
        assert eager[:2] == pytest.approx(ours[:2], abs=0.05)


def test_mesh_of_two_stages_on_one_gpu_matches_transformers() -> None:
    question = Chat((ChatMessage("user", "Give me three tips for staying healthy."),))
    request = GenerationRequest(prompts=(question,), max_tokens=40)
    with serving("smollm2", "--pp", "2", "--device", "cuda") as mesh:
        assert mesh.ask(request).text().startswith(ANSWER)
        mesh.stop()
