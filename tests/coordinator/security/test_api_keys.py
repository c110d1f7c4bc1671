"""The file of API keys: its format, its limits, and changes while it is in use."""

import os
import stat
from pathlib import Path

import pytest

from coordinator.security.api_keys import (
    ANONYMOUS,
    ApiKeys,
    Tenant,
    add_key,
    hash_of,
    read_key_file,
)
from runtime.errors import KeyFileError, UnauthenticatedError

ALICE = Tenant("alice", max_in_flight=2, tokens_per_minute=100)


def test_added_key_is_accepted_and_not_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    key = add_key(path, ALICE)
    other = add_key(path, Tenant("bob"))
    keys = ApiKeys(path)
    assert keys.tenant(f"Bearer {key}") == ALICE
    assert keys.tenant(f"bearer  {other}") == Tenant("bob")
    assert key not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_key_added_below_a_line_without_an_end_leaves_the_file_readable(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    add_key(path, ALICE)
    path.write_text(path.read_text().rstrip())
    key = add_key(path, Tenant("bob"))
    assert ApiKeys(path).tenant(f"Bearer {key}") == Tenant("bob")
    assert {tenant.name for tenant in read_key_file(path).values()} == {"alice", "bob"}


@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer ", "Bearer wrong", "Basic {key}", "{key}", "Bearer {hash}", "é"],
)
def test_missing_or_unknown_key_is_refused(authorization: str | None, tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    key = add_key(path, ALICE)
    if authorization is not None:
        authorization = authorization.format(key=key, hash=hash_of(key))
    with pytest.raises(UnauthenticatedError) as caught:
        ApiKeys(path).tenant(authorization)
    assert key not in str(caught.value)


def test_api_without_a_key_file_needs_no_key() -> None:
    keys = ApiKeys(None)
    assert keys.tenant(None) == keys.tenant("Bearer none") == ANONYMOUS


def test_limits_missing_in_the_file_are_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    key = add_key(path, Tenant("bob", max_in_flight=7))
    keys = ApiKeys(path, defaults=Tenant("", max_in_flight=1, tokens_per_minute=50))
    assert keys.tenant(f"Bearer {key}") == Tenant("bob", max_in_flight=7, tokens_per_minute=50)


def test_changed_file_takes_effect_and_an_invalid_one_does_not(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    first = add_key(path, ALICE)
    keys = ApiKeys(path)
    second = add_key(path, Tenant("bob"))
    keys.reload()
    assert keys.tenant(f"Bearer {second}").name == "bob"

    path.write_text("[alice\n")
    keys.reload()
    assert keys.tenant(f"Bearer {first}") == ALICE
    path.unlink()
    keys.reload()
    assert keys.tenant(f"Bearer {first}") == ALICE

    # As editors and tools that replace a file do.
    (tmp_path / "new").write_text(f'[bob]\nsha256 = "{hash_of(second)}"\n')
    os.replace(tmp_path / "new", path)
    keys.reload()
    assert keys.tenant(f"Bearer {second}").name == "bob"
    with pytest.raises(UnauthenticatedError):
        keys.tenant(f"Bearer {first}")


HASH = "0" * 64


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("[alice", "not TOML"),
        ("alice = 1", "must be a table"),
        ("[alice]\n", "needs sha256"),
        ('[alice]\nsha256 = "abc"', "64 hexadecimal digits"),
        (f'[alice]\nsha256 = "{HASH.replace("0", "A")}"', "64 hexadecimal digits"),
        ('["a b"]\n', "'a b' is no name"),
        (f'[alice]\nsha256 = "{HASH}"\nmax_inflight = 3', "'max_inflight'"),
        (f'[alice]\nsha256 = "{HASH}"\nmax_in_flight = 0', "from 1 up"),
        (f'[alice]\nsha256 = "{HASH}"\ntokens_per_minute = "many"', "from 1 up"),
        (f'[alice]\nsha256 = "{HASH}"\n[bob]\nsha256 = "{HASH}"', "[bob] has the key of [alice]"),
        (f'[alice]\nsha256 = "{HASH}"\n[alice]\nsha256 = "{HASH}"', "not TOML"),
    ],
)
def test_invalid_file_is_refused_with_the_problem(
    content: str, problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(content)
    with pytest.raises(KeyFileError) as caught:
        read_key_file(path)
    assert problem in str(caught.value)
    assert str(path) in str(caught.value)


def test_missing_file_is_refused_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="stagemesh keys add"):
        ApiKeys(tmp_path / "none.toml")


@pytest.mark.parametrize(("name", "problem"), [("alice", "is there already"), ("a b", "no name")])
def test_key_with_a_bad_name_is_not_added(name: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    add_key(path, ALICE)
    before = path.read_text()
    with pytest.raises(KeyFileError, match=problem):
        add_key(path, Tenant(name))
    assert path.read_text() == before
