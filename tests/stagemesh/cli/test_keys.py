"""`stagemesh keys add` and the options that control access to the APIs."""

from pathlib import Path

import pytest

from coordinator.security.api_keys import ApiKeys
from stagemesh.cli import app, main


def run_main(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    return int(caught.value.code or 0)


def test_keys_add_prints_the_key_alone_and_keeps_its_hash(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys.toml"
    monkeypatch.setenv("STAGEMESH_API_KEYS", str(path))
    assert run_main("keys", "add", "alice", "--max-in-flight", "3") == 0
    shown = capsys.readouterr()
    tenant = ApiKeys(path).tenant(f"Bearer {shown.out.strip()}")
    assert (tenant.name, tenant.max_in_flight, tenant.tokens_per_minute) == ("alice", 3, None)
    assert shown.out.strip() not in shown.err + path.read_text()
    assert run_main("keys", "add", "alice") == 1
    assert "is there already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--api-keys", "k", "--allow-anonymous"), "contradicts"),
        (("--protect-state",), "without --api-keys"),
        (("--key-max-in-flight", "3"), "without --api-keys"),
        (("--api-keys", "k", "--key-tokens-per-minute", "0"), "Must be >= 1"),
    ],
)
def test_access_options_that_contradict_each_other_are_refused(
    options: tuple[str, ...], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        app(("serve", "m", *options))
    assert expected in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--http", "0.0.0.0:0"), "--allow-anonymous"),
        (("--grpc", "[::]:0"), "--api-keys FILE"),
        (("--api-keys", "no-such-file"), "stagemesh keys add NAME"),
    ],
)
def test_serve_with_a_api_for_anybody_or_without_its_keys_is_refused_at_once(
    options: tuple[str, ...], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    addresses = {"--http": "127.0.0.1:0", "--grpc": "127.0.0.1:0", "--mesh": "127.0.0.1:0"}
    addresses |= {options[0]: options[1]}
    arguments = [word for pair in addresses.items() for word in pair]
    assert run_main("serve", "no-such-model", *arguments) == 1
    assert expected in capsys.readouterr().err
