"""Writes docs/models.md from the code; with `--check`, only compares it."""

import argparse
import sys
from pathlib import Path

from runtime.model_config.families import FAMILIES
from runtime.model_config.family import Family
from runtime.model_config.model_config import KNOWN_ACTIVATIONS, KNOWN_DTYPES
from runtime.model_config.rope_config import KNOWN_ROPE_TYPES

DOCUMENT = Path(__file__).parents[1] / "docs" / "models.md"

TEXT = """\
# Models

Made by `scripts/models.py` from `runtime/model_config/families.py`.
`scripts/check` compares the two.

A model is served if `architectures` in its config.json is one of these:

{table}

Common to all:

- rotary positions, rope types {rope_types};
- gated feed-forward networks, {activations};
- grouped queries, tied or untied embeddings, RMS norms;
- checkpoints in {dtypes}.

A family is one entry of data: the decoder (`stage_worker/model`) is the same code for all. Field
names and defaults are those of Transformers' configuration classes. A field with a value that the
family's code does not compute (another rope type, bidirectional attention, a quantized checkpoint,
biases or windows where the family has none) is refused by name before weights are read.

`tests/stage_worker/execution/test_families_against_transformers.py` compares every family with
Transformers: random tiny models in float32, log-probabilities of the whole vocabulary within
1e-4 of the largest and the same greedy tokens, for one to three stages of one and of two
ranks, for prompts in chunks of 1, of 7 and whole, and for prompts longer than the window.

## What to know

- **Numbers**: `--dtype auto`, the default, computes in the checkpoint's dtype if every worker that
  has joined does so at full speed, otherwise in float32: a CPU without units for bfloat16 would
  only emulate it. The choice is made once, when the first workers are there.
- **Sliding windows** limit what is read, not what is kept: the KV cache holds the whole sequence.
- **LongRoPE** (long-context Phi-3 and Phi-4-mini) has one set of factors for short and one for long
  contexts. Transformers chooses by the length that a sequence has so far, and computes everything
  anew when it crosses the original length. Here the mesh chooses once, by `--max-model-len`: up to
  the original length (4096 for these models) it uses the short factors, beyond it the long ones. In
  the first case all numbers are those of Transformers; in the second those of sequences that are
  longer than the original length, while shorter ones differ (vLLM chooses likewise).
- **Ranks** (`--tp`) cut a stage between key/value heads, so there are at most as many ranks as the
  model has of those; uneven shares are fine (SmolLM2 has 3: two ranks take 2 and 1). Where there
  is a single one (multi-query attention), each rank has that one and its part of the query heads.
  So Gemma 3 1B, with 4 query heads and 1 key/value head, runs on up to 4 ranks, but the KV cache of
  each is as large as that of one rank alone.
- **Mixtures of experts** keep all experts of a layer in the stage that has the layer; its ranks
  share them out whole.
- **Gemma 3** means the text models; those with images are another architecture and are refused.
- **GGUF files** are converted for Llama only.
"""


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    text = make_document()
    if not parser.parse_args().check:
        DOCUMENT.write_text(text, encoding="utf-8")
        return 0
    if DOCUMENT.exists() and DOCUMENT.read_text(encoding="utf-8") == text:
        return 0
    sys.stderr.write("docs/models.md is not current: run scripts/models.py\n")
    return 1


def make_document() -> str:
    """The whole page."""
    rows = [
        f"| {family.models} | `{family.architecture}` | {'; '.join(_features(family)) or '-'} |"
        for family in FAMILIES
    ]
    head = "| models | architecture | beside what Llama has |\n| --- | --- | --- |\n"
    return TEXT.format(
        table=head + "\n".join(rows),
        rope_types=_join(KNOWN_ROPE_TYPES),
        activations=_join(KNOWN_ACTIVATIONS),
        dtypes=_join(KNOWN_DTYPES),
    )


def _join(words: tuple[str, ...]) -> str:
    return ", ".join(words)


def _features(family: Family) -> list[str]:
    options = family.options
    norm = family.query_key_norm
    names = family.norms
    is_sandwich = names.before_attention and names.after_attention
    checks = {
        "norms before and after each half": is_sandwich,
        "norms after each half only": not names.before_attention,
        "norm weights stored less one": family.is_norm_centered,
        f"norms of queries and keys ({norm and norm.value})": norm,
        "biases of queries, keys and values": family.has_query_bias,
        "fused weights": len(family.query_names) == 1,
        f"sliding window ({_rule(family)})": "sliding_window" in options,
        "sliding layers have a rope of their own": family.has_local_rope,
        "layers without rope": "no_rope_layers" in options,
        "partial rotation": "partial_rotary_factor" in options,
        "scaled embeddings": family.is_embedding_scaled or "embedding_multiplier" in options,
        "multipliers of residuals and logits": "residual_multiplier" in options,
        "attention scale of its own": options & {"query_pre_attn_scalar", "attention_multiplier"},
        "soft cap of attention scores": "attn_logit_softcapping" in options,
        "soft cap of logits": "final_logit_softcapping" in options,
        "mixture of experts": "num_experts" in options,
    }
    return [feature for feature, has_it in checks.items() if has_it]


def _rule(family: Family) -> str:
    """The first line of the rule's docstring, as part of a sentence."""
    line = (family.windows.__doc__ or "").splitlines()[0].rstrip(".")
    return line[:1].lower() + line[1:]


if __name__ == "__main__":
    sys.exit(main())
