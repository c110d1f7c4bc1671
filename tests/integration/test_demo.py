"""The demonstration from beginning to end, on a tiny model."""

import pytest

from tests.integration.processes import leaving_no_child, run_command
from tests.integration.tiny_chat import TinyChat

pytestmark = pytest.mark.integration


def test_demo_streams_an_answer_shows_its_cost_and_leaves_nothing(tiny_chat: TinyChat) -> None:
    with leaving_no_child():
        done = run_command("demo", "--model", str(tiny_chat.model.folder), "--max-tokens", "9")
    assert done.returncode == 0, done.stderr
    chat = [{"role": "user", "content": "Give me three tips for staying healthy."}]
    rendered = tiny_chat.tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, tokenize=False
    )
    prompt = tuple(tiny_chat.tokenizer.encode(rendered))
    assert f"assistant: {tiny_chat.decode(tiny_chat.greedy(prompt, 9))}" in done.stdout
    for title in ("Plan", "Stages, for this answer", "Hops, for this answer", "tokens/s"):
        assert title in done.stdout
    assert done.stderr.splitlines()[-1] == "stopped"
