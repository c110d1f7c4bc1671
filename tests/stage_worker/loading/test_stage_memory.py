"""The bytes that one rank of a larger checkpoint reads and holds, in a separate process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

HIDDEN, FFN, VOCAB, NUM_LAYERS = 768, 2048, 16_000, 8
LAYER_SHAPES = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (HIDDEN, HIDDEN),
    "self_attn.v_proj": (HIDDEN, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (FFN, HIDDEN),
    "mlp.up_proj": (FFN, HIDDEN),
    "mlp.down_proj": (HIDDEN, FFN),
    "input_layernorm": (HIDDEN,),
    "post_attention_layernorm": (HIDDEN,),
}

MEASURE = """
import json, sys
from pathlib import Path
import torch
from runtime.checkpoints.checkpoint import Checkpoint
from stage_worker.execution.stage_runner import StageRunner
from stage_worker.execution.stage_spec import StageSpec

def peak_bytes():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

def read_bytes():
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("rchar"))

def load(first_layer, num_layers, is_first=False, is_last=False, rank=0, tp_size=1):
    spec = StageSpec(
        first_layer, num_layers, is_first, is_last, "float32", 16, 1024, 0, 1, "cpu", rank, tp_size
    )
    return StageRunner.load(Checkpoint.open(Path(sys.argv[1])), spec, lambda done, total: None)

load(0, 1)
Path("/proc/self/clear_refs").write_text("5")
peak, read = peak_bytes(), read_bytes()
stage = load(*json.loads(sys.argv[2]))
stage.open_epoch(stage.kv_block_capacity(), 64)
print(json.dumps([stage.weights_bytes, peak_bytes() - peak, read_bytes() - read]))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float32 checkpoint of 330 MB."""
    folder = tmp_path_factory.mktemp("larger")
    tensors = {
        f"model.layers.{index}.{name}.weight": torch.zeros(shape)
        for index in range(NUM_LAYERS)
        for name, shape in LAYER_SHAPES.items()
    }
    tensors["model.embed_tokens.weight"] = torch.zeros(VOCAB, HIDDEN)
    tensors["lm_head.weight"] = torch.zeros(VOCAB, HIDDEN)
    tensors["model.norm.weight"] = torch.zeros(HIDDEN)
    save_file(tensors, folder / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": NUM_LAYERS,
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_attention_heads": 12,
        "vocab_size": VOCAB,
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def measure(folder: Path, part: list[object]) -> tuple[int, int, int]:
    """Bytes of weights, of peak memory, and read."""
    command = [sys.executable, "-c", MEASURE, str(folder), json.dumps(part)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    weights_bytes, peak_bytes, read_bytes = json.loads(run.stdout)
    return weights_bytes, peak_bytes, read_bytes


@pytest.mark.parametrize(
    "part", [[0, 4, True, False], [4, 4, False, True], [2, 3, False, False]], ids=str
)
def test_stage_load_of_a_part_reads_and_holds_its_share(folder: Path, part: list[object]) -> None:
    weights_bytes, peak_bytes, read_bytes = measure(folder, part)
    checkpoint_bytes = (folder / "model.safetensors").stat().st_size
    assert weights_bytes < 0.55 * checkpoint_bytes
    assert weights_bytes <= read_bytes < weights_bytes + 2 * 2**20
    assert peak_bytes < 1.15 * weights_bytes + 16 * 2**20


@pytest.mark.parametrize(("rank", "tp_size"), [(0, 2), (4, 5)])
def test_stage_load_of_a_rank_reads_and_holds_its_share(
    rank: int, tp_size: int, folder: Path
) -> None:
    weights_bytes, peak_bytes, read_bytes = measure(folder, [0, 8, True, True, rank, tp_size])
    checkpoint_bytes = (folder / "model.safetensors").stat().st_size
    assert weights_bytes < 1.05 * checkpoint_bytes / tp_size
    assert weights_bytes <= read_bytes < weights_bytes + 2 * 2**20
    assert peak_bytes < 1.15 * weights_bytes + 24 * 2**20
