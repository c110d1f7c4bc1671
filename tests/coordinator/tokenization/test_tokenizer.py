"""The coordinator's tokenizer against `AutoTokenizer`, on the bundled model and a Llama 2 kind."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from coordinator.tokenization.tokenizer import Tokenizer
from runtime.checkpoints.model_store import resolve_model
from runtime.errors import ChatTemplateError, ModelConfigError, TokenOutOfVocabularyError
from runtime.model_config.model_config import load_model_config
from runtime.protocol.inference_types import ChatMessage
from tests.coordinator.tokenization.tokenizer_models import (
    load_byte_fallback,
    make_config,
    save_byte_fallback,
)

TEXTS = [
    "",
    " ",
    "Give me three tips for staying healthy.",
    "  leading, trailing  \n\n\t",
    "naïve café, 世界, 😀👩‍👩‍👧, e\u0301, \u202e",
    "<|im_start|>system\nobey<|im_end|>",
    "</s><s>[INST] x<unk>",
    "<0x41> \ufffd \x00 ▁",
    "don't 12345 x" * 300,
]
HELLO = [ChatMessage("user", "hello")]


@pytest.fixture(scope="module", autouse=True)
def bundled() -> tuple[Tokenizer, Any]:
    """Converted once for this machine: made before any test turns to a cache of its own."""
    folder = resolve_model("smollm2")
    return Tokenizer.load(folder, load_model_config(folder)), AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def byte_fallback(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Any]:
    folder = save_byte_fallback(tmp_path_factory.mktemp("tokenizer"))
    return Tokenizer.load(folder, make_config(1024)), AutoTokenizer.from_pretrained(folder)


@pytest.fixture(params=["bundled", "byte_fallback"])
def pair(request: pytest.FixtureRequest) -> tuple[Tokenizer, Any]:
    """Ours and Transformers'."""
    both: tuple[Tokenizer, Any] = request.getfixturevalue(request.param)
    return both


def with_template(folder: Path, template: object) -> Tokenizer:
    """A tokenizer whose template is in tokenizer_config.json, as earlier Transformers wrote it."""
    save_byte_fallback(folder)
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"chat_template": template}))
    return Tokenizer.load(folder, make_config(1024))


@pytest.mark.parametrize("text", TEXTS)
def test_encode_of_text_equals_transformers(pair: tuple[Tokenizer, Any], text: str) -> None:
    mine, theirs = pair
    assert list(mine.encode(text)) == theirs(text).input_ids


@given(text=st.text(max_size=80))
@settings(deadline=None)
def test_encode_of_any_text_equals_transformers(bundled: tuple[Tokenizer, Any], text: str) -> None:
    mine, theirs = bundled
    assert list(mine.encode(text)) == theirs(text).input_ids


def test_encode_with_bos_adds_it_to_text_and_not_to_chat(tmp_path: Path) -> None:
    tokenizer = load_byte_fallback(tmp_path, chat_template="{{ messages[0].content }}")
    assert tokenizer.encode("hello")[0] == 1
    assert tokenizer.encode_chat(HELLO) == tokenizer.encode("hello")[1:]


@pytest.mark.parametrize("content", TEXTS)
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_encode_chat_of_bundled_model_equals_transformers(
    bundled: tuple[Tokenizer, Any], content: str, add_generation_prompt: bool
) -> None:
    mine, theirs = bundled
    turns = [("user", content), ("assistant", "ok"), ("user", content)]
    messages = [ChatMessage(role, text) for role, text in turns]
    conversation = [{"role": role, "content": text} for role, text in turns]
    options = {"add_generation_prompt": add_generation_prompt}
    rendered = theirs.apply_chat_template(conversation, tokenize=False, **options)
    assert mine.render_chat(messages, add_generation_prompt=add_generation_prompt) == rendered
    expected = theirs.apply_chat_template(conversation, **options)["input_ids"]
    ids = mine.encode_chat(messages, add_generation_prompt=add_generation_prompt)
    assert list(ids) == expected


@pytest.mark.parametrize("length", [1, 10_000])
async def test_encode_async_of_any_length_equals_encode(
    bundled: tuple[Tokenizer, Any], length: int
) -> None:
    tokenizer, _ = bundled
    assert await tokenizer.encode_async("word " * length) == tokenizer.encode("word " * length)
    messages = [ChatMessage("user", "word " * length)]
    assert await tokenizer.encode_chat_async(messages) == tokenizer.encode_chat(messages)


async def test_encode_async_of_long_text_leaves_the_event_loop_free(
    bundled: tuple[Tokenizer, Any],
) -> None:
    tokenizer, _ = bundled
    loop = asyncio.get_running_loop()
    started = last = loop.time()
    longest_gap = 0.0
    encoding = asyncio.create_task(tokenizer.encode_async("the next " * 100_000))
    while not encoding.done():
        await asyncio.sleep(0)
        longest_gap = max(longest_gap, loop.time() - last)
        last = loop.time()
    assert longest_gap < (last - started) / 2


def test_fewest_tokens_of_any_text_is_never_more_than_it_has(
    pair: tuple[Tokenizer, Any],
) -> None:
    tokenizer, _ = pair
    text = "  Well: \N{SLIGHTLY SMILING FACE} 123\n\n" * 9
    assert 0 <= tokenizer.fewest_tokens(len(text)) <= len(tokenizer.encode(text))


def test_fewest_tokens_of_bundled_model_bounds_long_texts(bundled: tuple[Tokenizer, Any]) -> None:
    assert bundled[0].fewest_tokens(16 * 2**20) > 100_000


def test_encode_of_token_that_the_model_lacks_is_refused(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(save_byte_fallback(tmp_path), make_config(10))
    with pytest.raises(TokenOutOfVocabularyError):
        tokenizer.encode("hello")


@pytest.mark.parametrize(
    "template",
    [
        "{{ bos_token }}{{ messages[0].content }}",
        [
            {"name": "tools", "template": "no"},
            {"name": "default", "template": "{{ bos_token }}{{ messages[0].content }}"},
        ],
    ],
)
def test_render_chat_with_template_in_tokenizer_config_uses_the_default(
    tmp_path: Path, template: object
) -> None:
    assert with_template(tmp_path, template).render_chat(HELLO) == "<s>hello"


def test_render_chat_with_template_file_uses_it(tmp_path: Path) -> None:
    save_byte_fallback(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].role }}{{ eos_token }}")
    tokenizer = Tokenizer.load(tmp_path, make_config(1024))
    assert tokenizer.render_chat(HELLO) == "user</s>"


def test_render_chat_without_template_says_what_to_send(tmp_path: Path) -> None:
    with pytest.raises(ChatTemplateError, match="infer --raw"):
        load_byte_fallback(tmp_path).render_chat(HELLO)


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("a\n{% for m in messages %}\nb", "line 3: .*end"),
        ("a\n\n{{ messages[0].content | nosuchfilter }}", "line 3: .*nosuchfilter"),
        ("a\n{{ messages[0].content + none }}", "line 2: can only concatenate"),
        ("a\n\n\n{{ messages[7].content.x }}", "line 4: .*undefined|line 4: .*no element"),
        ("\n{{ raise_exception('roles must alternate') }}", "line 2: roles must alternate"),
        ("{{ 1 // 0 }}", "line 1: .*zero"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{{ messages.append(1) }}", "line 1: .*not safely callable|line 1: .*unsafe"),
        ("{{ ''.__class__.__mro__ }}", "line 1: .*unsafe"),
        ("{{ range(10000000) | list }}", "line 1: Range too big"),
    ],
)
def test_render_chat_of_broken_template_names_the_line(
    tmp_path: Path, template: str, problem: str
) -> None:
    tokenizer = with_template(tmp_path, template)
    with pytest.raises(ChatTemplateError, match=problem):
        tokenizer.render_chat(HELLO)


def test_render_chat_of_no_messages_is_refused(bundled: tuple[Tokenizer, Any]) -> None:
    with pytest.raises(ChatTemplateError, match="at least one message"):
        bundled[0].render_chat([])


def test_load_of_folder_without_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelConfigError, match=r"no tokenizer\.json"):
        Tokenizer.load(tmp_path, make_config(10))


@pytest.mark.parametrize("text", ["", "{", '{"a": 1}', '{"added_tokens": [], "model": {}}'])
def test_load_of_broken_tokenizer_is_refused(tmp_path: Path, text: str) -> None:
    save_byte_fallback(tmp_path)
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ModelConfigError, match="the tokenizer cannot be read"):
        Tokenizer.load(tmp_path, make_config(10))


def test_use_of_tokenizer_imports_no_torch(bundled: tuple[Tokenizer, Any]) -> None:
    program = """
import sys
from pathlib import Path
from coordinator.output.detokenizer import Detokenizer
from coordinator.tokenization.tokenizer import Tokenizer
from runtime.protocol.inference_types import ChatMessage
from runtime.checkpoints.checkpoint import Checkpoint
from runtime.model_config.model_config import load_model_config
import runtime.checkpoints.model_store

folder = Path(sys.argv[1])
Checkpoint.open(folder)
tokenizer = Tokenizer.load(folder, load_model_config(folder))
detokenizer = Detokenizer(tokenizer)
text = "".join(map(detokenizer.push, tokenizer.encode_chat([ChatMessage("user", "hello")])))
assert "hello" in text
assert "torch" not in sys.modules
"""
    folder = bundled[1].name_or_path
    subprocess.run([sys.executable, "-c", program, folder], check=True, timeout=60)


def test_import_of_whole_coordinator_imports_no_torch() -> None:
    program = """
import importlib, pkgutil, sys
import coordinator
for module in pkgutil.walk_packages(coordinator.__path__, "coordinator."):
    importlib.import_module(module.name)
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
