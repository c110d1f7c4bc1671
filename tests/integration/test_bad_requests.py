"""Bad requests from the command line: one clear error each, and no harm to anybody else."""

from pathlib import Path

import pytest

from stagemesh import GenerationRequest, TokenIds
from tests.integration.processes import Mesh, run_command
from tests.integration.tiny_chat import TinyChat

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("arguments", "stdin", "expected"),
    [
        (("",), "", "prompt 0 is empty; send at least one token"),
        (("-",), "", "prompt 0 is empty; send at least one token"),
        (("-", "--raw"), "the " * 9000, "tokens, but at most"),
        (("hi", "--model-name", "other"), "", "model 'other' is not served here"),
        (("hi", "--top-p", "0"), "", "Must be > 0"),
        (("hi", "--regex", "a", "--choice", "b"), "", "give only one of the three"),
    ],
    ids=["empty", "empty_stdin", "too_long", "unknown_model", "top_p", "two_forms"],
)
def test_infer_with_bad_input_exits_with_one_message(
    arguments: tuple[str, ...], stdin: str, expected: str, pair: Mesh, tiny_chat: TinyChat
) -> None:
    done = run_command("infer", *arguments, "--target", pair.target, stdin=stdin)
    assert done.returncode in (1, 2)
    assert done.stdout == ""
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    request = GenerationRequest(prompts=(TokenIds((5, 6)),), max_tokens=3, ignore_eos=True)
    assert pair.ask(request).token_ids() == tiny_chat.greedy((5, 6), 3)


def test_infer_streams_the_text_and_tells_its_cost(pair: Mesh, tiny_chat: TinyChat) -> None:
    done = run_command(
        *("infer", "--raw", "the client", "--max-tokens", "8", "--ignore-eos", "--stats"),
        *("--target", pair.target),
    )
    prompt = tuple(tiny_chat.tokenizer.encode("the client"))
    assert done.returncode == 0
    assert done.stdout == tiny_chat.decode(tiny_chat.greedy(prompt, 8)) + "\n"
    assert f"{len(prompt)} prompt tokens, 8 generated" in done.stderr


@pytest.mark.parametrize("form", ["json_schema", "regex", "choice"])
def test_infer_with_a_form_answers_in_it(form: str, pair: Mesh, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"enum": ["yes", "no"]}')
    options = {
        "json_schema": ("--json-schema", str(schema)),
        "regex": ("--regex", "yes|no"),
        "choice": ("--choice", "yes", "--choice", "no"),
    }
    done = run_command("infer", "--raw", "the", *options[form], "--target", pair.target)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().strip('"') in ("yes", "no")


def test_infer_past_its_timeout_exits_with_a_message(pair: Mesh) -> None:
    done = run_command(
        *("infer", "hi", "--ignore-eos", "--max-tokens", "4000", "--timeout", "0.5"),
        *("--target", pair.target),
    )
    assert done.returncode == 1
    assert done.stderr == (
        "error: the deadline passed before the answer was complete; set a longer timeout\n"
    )


def test_status_shows_plan_and_load(pair: Mesh) -> None:
    shown = run_command("status", "--target", pair.target)
    assert shown.returncode == 0
    for title in ("Plan", "Stages", "Hops", "Load"):
        assert title in shown.stdout
    as_json = run_command("status", "--json", "--target", pair.target)
    assert '"ready": true' in as_json.stdout


def test_status_of_the_scheduler_shows_what_it_steers_by_and_its_limits(pair: Mesh) -> None:
    assert run_command("infer", "hi", "--max-tokens", "8", "--target", pair.target).returncode == 0
    shown = run_command("status", "--scheduler", "--target", pair.target)
    assert shown.returncode == 0
    for part in ("adaptive", "microbatches in flight", "predictions", "Cost models", "starved"):
        assert part in shown.stdout
