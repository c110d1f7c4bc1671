"""A mesh whose APIs, and whose state, ask for keys: also its own launcher needs one."""

from pathlib import Path

import pytest

from coordinator.security.api_keys import Tenant, add_key
from tests.integration.processes import run_command, serving
from tests.integration.tiny_chat import TinyChat

pytestmark = pytest.mark.integration


def test_mesh_with_a_protected_state_starts_and_answers_only_with_a_key(
    tiny_chat: TinyChat, tmp_path: Path
) -> None:
    path = tmp_path / "keys.toml"
    key = add_key(path, Tenant("alice"))
    options = ("--api-keys", str(path), "--protect-state", "--kv-memory", "64MiB")
    with serving(str(tiny_chat.model.folder), *options) as mesh:
        for command in (("status", "--json"), ("infer", "hi", "--max-tokens", "2")):
            refused = run_command(*command, "--target", mesh.target)
            assert (refused.returncode, refused.stdout) == (1, "")
            assert "no API key was sent" in refused.stderr
            env = {"STAGEMESH_API_KEY": key}
            answered = run_command(*command, "--target", mesh.target, env=env)
            assert (answered.returncode, answered.stderr) == (0, "")
            assert answered.stdout.strip()
        mesh.stop()
