"""A replica that is up and serves nobody: noticed, reported and mended."""

import asyncio
from pathlib import Path

import grpc.aio
import pytest

from runtime.protocol.step import Step
from runtime.rpc.channels import error_from_rpc
from scheduler import Scheduler
from tests.coordinator.toy_mesh import ToyMesh, collect, token_request, toy_mesh
from tests.coordinator.toy_model import toy_answer

PROMPT = (3, 4, 5)


def block(monkeypatch: pytest.MonkeyPatch, num_epochs: int, prompt: tuple[int, ...]) -> None:
    """For a number of epochs no step is made while `prompt` is the head of the queue."""
    schedule, restart = Scheduler.schedule, Scheduler.restart
    left = [num_epochs]

    def blocked_schedule(self: Scheduler, now: float) -> Step | None:
        first = self._table.get(self.next_waiting_id(now) or -1)
        if left[0] > 0 and first is not None and first.request.prompt_ids == prompt:
            return None
        return schedule(self, now)

    def counted_restart(self: Scheduler, *args: object) -> object:
        if self.num_waiting:
            left[0] -= 1
        return restart(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Scheduler, "schedule", blocked_schedule)
    monkeypatch.setattr(Scheduler, "restart", counted_restart)


async def metrics_of(mesh: ToyMesh) -> str:
    async with mesh.http() as http:
        return (await http.get("/metrics")).text


async def test_requests_that_wait_while_none_runs_are_noticed_and_served_after_all(
    toy_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 9: vllm#45414, #45388: running 0, waiting N, health green."""
    block(monkeypatch, num_epochs=1, prompt=PROMPT)
    async with toy_mesh(toy_folder, stall_seconds=0.2) as mesh:
        await mesh.until_ready()
        async with asyncio.timeout(30):
            answers = await asyncio.gather(
                *(collect(mesh.infer(token_request(PROMPT, max_tokens=5))) for _ in range(3))
            )
        assert [answer[0].tokens for answer in answers] == [toy_answer(PROMPT, 5)] * 3
        state = await mesh.until_idle()
        assert state.replicas[0].epoch.counter > 1
        metrics = await metrics_of(mesh)
    assert 'epoch_ends_total{cause="no_progress",replica="0"} 1.0' in metrics


async def test_request_that_can_never_run_is_failed_and_others_are_served(
    toy_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 9 again: what stands in the way does not stand there for ever."""
    block(monkeypatch, num_epochs=100, prompt=PROMPT)
    async with toy_mesh(toy_folder, stall_seconds=0.1) as mesh:
        await mesh.until_ready()
        stuck = asyncio.create_task(collect(mesh.infer(token_request(PROMPT, max_tokens=5))))
        await mesh.until(lambda state: state.num_waiting == 1)
        async with asyncio.timeout(30):
            other = await collect(mesh.infer(token_request((9, 9), max_tokens=5)))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stuck
        assert other[0].tokens == toy_answer((9, 9), 5)
    code, message = error_from_rpc(caught.value)
    assert code == "epoch_ended"
    assert "no_progress" in message
    assert "no step was made for 0.1 s" in message


async def test_full_line_says_when_to_come_again(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder, max_sequences=1, max_waiting=1) as mesh:
        await mesh.until_ready()
        for _ in range(3):
            await collect(mesh.infer(token_request(PROMPT, max_tokens=2)))
        running = asyncio.create_task(collect(mesh.infer(token_request(PROMPT, max_tokens=400))))
        await mesh.until(lambda state: state.num_running == 1)
        waiting = asyncio.create_task(collect(mesh.infer(token_request(PROMPT, max_tokens=1))))
        await mesh.until(lambda state: state.num_waiting == 1)
        async with mesh.http() as http:
            body = {"prompt": list(PROMPT), "max_tokens": 1}
            response = await http.post("/v1/completions", json=body)
        await asyncio.gather(running, waiting)
    assert response.status_code == 429
    assert 1 <= int(response.headers["retry-after"]) <= 60
    assert (
        f"try again in {response.headers['retry-after']} s" in response.json()["error"]["message"]
    )
