"""The addresses that a worker may dial: without TLS only loopback, unless allowed."""

from pathlib import Path

import grpc.aio
import pytest

from runtime.rpc.tls import DialPolicy
from stage_worker.transport import stage_sender
from tests.stage_worker.live_workers import live_workers, make_assignments, make_opening
from tests.tiny_models import make_tiny_llama

ELSEWHERE = "192.0.2.1:50100"


@pytest.mark.parametrize(
    ("dial_policy", "message"),
    [
        (DialPolicy(), f"the next stage's address {ELSEWHERE} .*--tls-dir.*--insecure-mesh"),
        (DialPolicy(is_insecure=True), f"next stage {ELSEWHERE}: "),
    ],
    ids=["loopback", "insecure"],
)
async def test_open_epoch_next_stage_beyond_loopback_is_dialled_only_if_allowed(
    tmp_path: Path, dial_policy: DialPolicy, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that dials any address lets its caller scan the worker's network."""
    monkeypatch.setattr(stage_sender, "_CONNECT_SECONDS", 0.2)
    folder = make_tiny_llama(tmp_path, "tied_gqa").folder
    async with live_workers(1, dial_policy) as (worker,):
        await worker.load(make_assignments(folder, (3, 1))[0])
        with pytest.raises(grpc.aio.AioRpcError, match=message):
            await worker.open_epoch(make_opening(1, next_addresses=[ELSEWHERE]))
