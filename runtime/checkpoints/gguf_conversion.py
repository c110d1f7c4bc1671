"""Converts a .gguf file to a folder in Hugging Face layout, with float32 safetensors.

Owns the names and the layout of the weights. Takes one shard's weights into memory at a time, and
writes into the folder that it is given: that a half-made folder is never taken for a model is the
business of `runtime/checkpoints/model_store.py`.
"""

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader, ReaderTensor, dequantize
from safetensors import SafetensorError
from safetensors.numpy import save_file

from runtime.checkpoints.gguf_metadata import (
    ROPE_FACTORS,
    generation_config,
    model_config,
    open_gguf,
    read_metadata,
    save_tokenizer,
)
from runtime.errors import CheckpointError
from runtime.model_config.config_fields import ConfigFields

Float32Array = npt.NDArray[np.float32]

_SHARD_BYTES: Final = 256 * 2**20
_FLOAT32_BYTES: Final = 4
_TOP_NAMES: Final = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_NAMES: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert_gguf(file: Path, folder: Path, progress: Callable[[int, int], None]) -> None:
    """Fills `folder` with config, tokenizer and weights; progress is in bytes written.

    Raises `CheckpointError`, `ModelConfigError` or `UnknownArchitectureError`, naming the file.
    """
    reader = open_gguf(file)
    fields = read_metadata(file, reader)
    _write_json(folder / "config.json", model_config(fields, reader))
    _write_json(folder / "generation_config.json", generation_config(fields))
    save_tokenizer(fields, folder)
    _write_weights(fields, reader, folder, progress)
    for written in folder.iterdir():
        _flush(written)


def _write_weights(
    fields: ConfigFields, reader: GGUFReader, folder: Path, progress: Callable[[int, int], None]
) -> None:
    tensors = [tensor for tensor in reader.tensors if tensor.name != ROPE_FACTORS]
    shards = list(_shards(tensors))
    total_bytes = sum(map(_float32_bytes, tensors))
    done_bytes = 0
    weight_map = {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        weights = {}
        for tensor in shard:
            weights[_hf_name(fields, tensor.name)] = _read_tensor(fields, tensor)
            done_bytes += _float32_bytes(tensor)
            progress(done_bytes, total_bytes)
        _save_shard(weights, folder / name)
        weight_map.update(dict.fromkeys(weights, name))
    index = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
    _write_json(folder / "model.safetensors.index.json", index)


def _save_shard(weights: dict[str, Float32Array], file: Path) -> None:
    try:
        save_file(weights, file, metadata={"format": "pt"})
    except SafetensorError as exc:  # how the library reports a full disk
        raise OSError(f"{file}: {exc}") from exc


def _shards(tensors: list[ReaderTensor]) -> Iterator[list[ReaderTensor]]:
    """Groups tensors into shards; a larger tensor has its own."""
    shard: list[ReaderTensor] = []
    num_bytes = 0
    for tensor in tensors:
        if shard and num_bytes + _float32_bytes(tensor) > _SHARD_BYTES:
            yield shard
            shard, num_bytes = [], 0
        shard.append(tensor)
        num_bytes += _float32_bytes(tensor)
    if shard:
        yield shard


def _float32_bytes(tensor: ReaderTensor) -> int:
    return int(tensor.n_elements) * _FLOAT32_BYTES


def _hf_name(fields: ConfigFields, name: str) -> str:
    match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", name)
    if match:
        layer, module, kind = match.groups()
        if layer is None and module in _TOP_NAMES:
            return f"{_TOP_NAMES[module]}.{kind}"
        if layer is not None and module in _LAYER_NAMES:
            return f"model.layers.{layer}.{_LAYER_NAMES[module]}.{kind}"
    raise CheckpointError(
        folder=str(fields.folder), problem=f"the tensor {name} is unknown in a llama model"
    )


def _read_tensor(fields: ConfigFields, tensor: ReaderTensor) -> Float32Array:
    """Dequantizes a tensor, with the rows of q and k in Hugging Face's order."""
    num_heads = fields.integer("llama.attention.head_count")
    num_kv_heads = fields.integer("llama.attention.head_count_kv", num_heads)
    try:
        weights = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        if ".attn_q." in tensor.name:
            weights = _unpermute(weights, num_heads)
        elif ".attn_k." in tensor.name:
            weights = _unpermute(weights, num_kv_heads)
    except (NotImplementedError, ValueError) as exc:
        raise CheckpointError(
            folder=str(fields.folder), problem=f"the tensor {tensor.name}: {exc}"
        ) from exc
    return np.ascontiguousarray(weights)


def _unpermute(weights: Float32Array, num_heads: int) -> Float32Array:
    """Undoes llama.cpp's interleaving of the two halves of each head (its `LlamaModel.permute`)."""
    half = weights.shape[0] // num_heads // 2
    by_pair = weights.reshape(num_heads, half, 2, *weights.shape[1:])
    return by_pair.swapaxes(1, 2).reshape(weights.shape)


def _write_json(file: Path, content: dict[str, object]) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _flush(file: Path) -> None:
    """Flushes to disk, so that a folder whose rename survives a crash of the machine is complete.

    The library's files are readable by their owner only; a cache may be shared with other users.
    """
    file.chmod(0o644)
    with file.open("rb") as stream:
        os.fsync(stream.fileno())
