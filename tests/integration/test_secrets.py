"""Logs hold no confidential text, at any level."""

import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

from coordinator.security.api_keys import Tenant, add_key
from stagemesh import Client, GenerationRequest, Sampling, StagemeshRpcError
from tests.conftest import MESH_OPTIONS
from tests.integration.processes import serving
from tests.integration.tiny_chat import TinyChat

pytestmark = pytest.mark.integration

PROMPT = "the password of the purple heron is swordfish"
GUESS = "sm-a-key-that-is-none"


def test_logs_of_a_run_hold_neither_prompt_nor_answer_nor_key(
    tiny_chat: TinyChat, tmp_path: Path
) -> None:
    path = tmp_path / "keys.toml"
    key = add_key(path, Tenant("alice"))
    options = ("--pp", "2", "--api-keys", str(path), "--log-level", "debug", *MESH_OPTIONS)
    good = GenerationRequest(prompts=(PROMPT,), max_tokens=40, ignore_eos=True)
    bad = (
        GenerationRequest(prompts=(PROMPT,), stop=(PROMPT,) * 1000),
        GenerationRequest(prompts=(PROMPT,), sampling=Sampling(temperature=-1.0)),
        GenerationRequest(prompts=(PROMPT * 1000,)),
    )
    with serving(str(tiny_chat.model.folder), *options) as mesh:
        with Client(mesh.target, api_key=key) as client:
            updates = client.infer(good, timeout_seconds=60)
            answer = next(updates).text
            psutil.Process(client.state().workers[0].pid).kill()
            answer += "".join(update.text for update in updates)
            for request in bad:
                with pytest.raises(StagemeshRpcError):
                    list(client.infer(request, timeout_seconds=60))
        with Client(mesh.target, api_key=GUESS) as client, pytest.raises(StagemeshRpcError):
            list(client.infer(good, timeout_seconds=60))
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        broken = f'{{"prompt": "{PROMPT}", "max_tokens": "{PROMPT}"'.encode()
        request_ = urllib.request.Request(f"http://{mesh.http}/v1/completions", broken, headers)
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(request_, timeout=30)
        mesh.stop()
        log = "\n".join(mesh.command.log.lines)
    assert "rpc_refused" in log
    assert len(answer) > 8
    for secret in (PROMPT, "purple heron", answer, key, GUESS):
        assert secret not in log
