"""GGUF conversion against Transformers' own reading of the same files."""

import json
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from runtime.checkpoints import gguf_conversion
from runtime.checkpoints.checkpoint import Checkpoint
from runtime.checkpoints.gguf_conversion import convert_gguf
from runtime.checkpoints.gguf_metadata import llama3_factors, llama3_parameters
from runtime.model_config.model_config import load_model_config
from runtime.model_config.rope_config import LinearScaling, Llama3Scaling
from tests.runtime.checkpoints.tiny_gguf import (
    VOCAB_SIZE,
    GgufOptions,
    convert,
    make_model,
    write_gguf,
)

TEXTS = [
    "",
    "hello world",
    "  two  spaces and\n\na newline ",
    "naïve café 世界 😀 👩‍👩‍👧",
    "<|im_start|>user\nhello<|im_end|>",
    "</s><s> a",
    "▁ <0x41>",
]


def states_are_equal(model: torch.nn.Module, other: torch.nn.Module) -> bool:
    mine, theirs = model.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[k], theirs[k]) for k in mine)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_word_embeddings": True},
        {"num_key_value_heads": 4},
        {
            "num_key_value_heads": 1,
            "rms_norm_eps": 0.5,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
        {"attention_bias": True, "mlp_bias": True},
    ],
)
def test_conversion_of_float_file_restores_the_model_exactly(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    model = make_model(**changes)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    folder = convert(write_gguf(tmp_path / "m.gguf", model), tmp_path / "out")
    restored = AutoModelForCausalLM.from_pretrained(folder)
    assert states_are_equal(model, restored)
    assert np.float32(restored.config.rms_norm_eps) == np.float32(model.config.rms_norm_eps)
    for name in ("rope_parameters", "head_dim", "max_position_embeddings"):
        assert getattr(restored.config, name) == getattr(model.config, name)


@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_1"])
def test_conversion_of_quantized_file_equals_transformers(tmp_path: Path, kind: str) -> None:
    model = make_model(tie_word_embeddings=True)
    options = GgufOptions(quantization=gguf.GGMLQuantizationType[kind])
    file = write_gguf(tmp_path / "m.gguf", model, options)
    reference = load_gguf_checkpoint(str(file), return_tensors=True, model_to_load=model)
    restored = AutoModelForCausalLM.from_pretrained(convert(file, tmp_path / "out")).state_dict()
    assert len(reference["tensors"]) == 4 * 9 + 2
    for name, tensor in reference["tensors"].items():
        assert torch.equal(restored[name], tensor.float()), name


@pytest.mark.parametrize("sentencepiece", [False, True])
def test_conversion_tokenizer_equals_transformers(tmp_path: Path, sentencepiece: bool) -> None:
    options = GgufOptions(sentencepiece=sentencepiece)
    file = write_gguf(tmp_path / "m.gguf", make_model(), options)
    mine = AutoTokenizer.from_pretrained(convert(file, tmp_path / "out"))
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file=file.name)
    for text in TEXTS:
        assert mine(text).input_ids == theirs(text).input_ids
        assert mine.decode(mine(text).input_ids) == theirs.decode(mine(text).input_ids)
    assert mine.special_tokens_map == theirs.special_tokens_map
    assert mine.chat_template == theirs.chat_template


def test_conversion_with_end_of_turn_token_ends_at_either(tmp_path: Path) -> None:
    options = GgufOptions(metadata={"tokenizer.ggml.eot_token_id": 0})
    folder = convert(write_gguf(tmp_path / "m.gguf", make_model(), options), tmp_path / "out")
    config = load_model_config(folder)
    assert config.eos_token_ids == (0, 2)
    assert config.bos_token_id == 1
    assert config.vocab_size == VOCAB_SIZE


def test_conversion_of_linear_rope_keeps_the_factor(tmp_path: Path) -> None:
    options = GgufOptions(rope_scaling=("linear", 4.0))
    folder = convert(write_gguf(tmp_path / "m.gguf", make_model(), options), tmp_path / "out")
    rope = load_model_config(folder).layers[0].rope
    assert rope is not None
    assert rope.scaling == LinearScaling(4.0)


def test_conversion_of_llama3_rope_recovers_its_numbers(tmp_path: Path) -> None:
    model = make_model(rope_parameters={"rope_type": "default", "rope_theta": 500_000.0})
    factors = llama3_factors(500_000.0, 16, llama3_parameters(32.0)).astype(np.float32)
    options = GgufOptions(tensors={"rope_freqs.weight": factors})
    folder = convert(write_gguf(tmp_path / "m.gguf", model, options), tmp_path / "out")
    rope = load_model_config(folder).layers[0].rope
    assert rope is not None
    assert rope.scaling == Llama3Scaling(32.0, 1.0, 4.0, 8192)
    rotary = AutoModelForCausalLM.from_pretrained(folder).model.rotary_emb
    plain = 1 / 500_000.0 ** (np.arange(0, 16, 2) / 16)
    assert np.allclose(rotary.inv_freq.numpy() * factors, plain, rtol=1e-5)


def test_conversion_in_shards_reports_bytes_and_holds_one_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(num_hidden_layers=24, vocab_size=VOCAB_SIZE)
    file = write_gguf(tmp_path / "m.gguf", model)
    monkeypatch.setattr(gguf_conversion, "_SHARD_BYTES", 200_000)
    reports: list[tuple[int, int]] = []
    peaks: list[int] = []

    def progress(done: int, total: int) -> None:
        reports.append((done, total))
        peaks.append(tracemalloc.get_traced_memory()[1])

    (tmp_path / "out").mkdir()
    tracemalloc.start()
    try:
        convert_gguf(file, tmp_path / "out", progress)
        baseline = peaks[0]
    finally:
        tracemalloc.stop()
    tensors = Checkpoint.open(tmp_path / "out").tensors
    total = sum(tensor.num_bytes for tensor in tensors.values())
    assert len({tensor.file for tensor in tensors.values()}) > 5
    assert reports[-1] == (total, total)
    assert [done for done, _ in reports] == sorted({done for done, _ in reports})
    assert peaks[-1] - baseline < 500_000 < total / 4
    assert states_are_equal(model, AutoModelForCausalLM.from_pretrained(tmp_path / "out"))


def test_conversion_writes_json_that_names_its_kind(tmp_path: Path) -> None:
    folder = convert(write_gguf(tmp_path / "m.gguf", make_model()), tmp_path / "out")
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["dtype"] == "float32"
