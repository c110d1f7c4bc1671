"""A coordinator over real workers that compute nothing, all of it in this process."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from protos import inference_pb2
from runtime.protocol.step import Step
from scheduler import POLICY_NAMES, PolicyName
from stage_worker.execution.simulated_stage import SIMULATED_DEVICE, simulated_logprobs
from stage_worker.server import WorkerOptions, serve_worker
from tests.coordinator.toy_mesh import ToyMesh, collect, read_one, token_request, toy_mesh
from tests.coordinator.toy_model import VOCAB_SIZE

NUM_STAGES = 4


class RecordingStepTimes:
    """Linear times; keeps what the first stage was sent."""

    num_kv_blocks = 512

    def __init__(self, fixed: float = 0.0, per_token: float = 0.0) -> None:
        self.steps: list[Step] = []
        self._fixed = fixed
        self._per_token = per_token
        self._lock = threading.Lock()

    def stage_seconds(self, step: Step, stage: int, share: float, age_seconds: float) -> float:
        if stage == 0:
            with self._lock:
                self.steps.append(step)
        return share * (self._fixed + self._per_token * step.num_tokens)

    def num_decodes(self) -> list[int]:
        """Decodes of each step that has nothing else."""
        return [
            len(step.chunks)
            for step in self.steps
            if all(len(chunk.token_ids) == 1 for chunk in step.chunks)
        ]


@asynccontextmanager
async def simulated_mesh(
    folder: Path, step_times: RecordingStepTimes, policy: PolicyName = "adaptive"
) -> AsyncIterator[ToyMesh]:
    """Four paced workers and a coordinator that serves."""
    stop = asyncio.Event()
    async with toy_mesh(folder, pp=NUM_STAGES, num_workers=0, policy=policy) as mesh:
        options = WorkerOptions(coordinator=mesh.mesh, step_times=step_times)
        async with asyncio.TaskGroup() as workers:
            for _ in range(NUM_STAGES):
                workers.create_task(serve_worker(options, stop))
            try:
                await mesh.until_ready()
                yield mesh
                await mesh.until_idle()
            finally:
                stop.set()


def endless_request(*prompts: list[int], max_tokens: int) -> inference_pb2.InferRequest:
    """A request that only its length ends."""
    request = token_request(*prompts, max_tokens=max_tokens)
    request.ignore_eos = True
    return request


def simulated_answer(prompt: list[int], num_tokens: int) -> list[int]:
    """What a paced mesh generates, whatever its policy."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(simulated_logprobs(tokens[-1], len(tokens), VOCAB_SIZE, 1)[0][0])
    return tokens[len(prompt) :]


@pytest.mark.parametrize("policy", POLICY_NAMES)
async def test_simulated_mesh_prompts_streams_the_expected_tokens(
    toy_folder: Path, policy: PolicyName
) -> None:
    prompts = [[3 + index, *range(4, 4 + 5 * index)] for index in range(6)]
    async with simulated_mesh(toy_folder, RecordingStepTimes(0.002), policy) as mesh:
        answers = await asyncio.gather(
            *(collect(mesh.infer(endless_request(prompt, max_tokens=12))) for prompt in prompts)
        )
        state = await mesh.state()
    assert {worker.hello.device.kind for worker in state.workers} == {SIMULATED_DEVICE}
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer[0].tokens == simulated_answer(prompt, 12)


@pytest.mark.parametrize("policy", [name for name in POLICY_NAMES if name != "vllm"])
async def test_simulated_mesh_32_decodes_over_4_stages_puts_at_most_9_in_a_microbatch(
    toy_folder: Path, policy: PolicyName
) -> None:
    """Case 1 (vllm#41682, #15330, #57433), live: no microbatch takes all the decodes.

    `vllm` stands for what was reported there, and does.
    """
    step_times = RecordingStepTimes(fixed=0.008, per_token=0.004)
    prompts = [[3, 4 + index] for index in range(32)]
    async with simulated_mesh(toy_folder, step_times, policy) as mesh:
        await collect(mesh.infer(endless_request(*prompts, max_tokens=24)))
    decodes = step_times.num_decodes()
    assert sum(decodes) >= 32 * 20
    assert max(decodes) <= 9


async def test_simulated_mesh_client_leaves_releases_all_stages(toy_folder: Path) -> None:
    async with simulated_mesh(toy_folder, RecordingStepTimes(0.004)) as mesh:
        calls = [mesh.infer(endless_request([3, 4 + index], max_tokens=400)) for index in range(4)]
        for call in calls:
            await read_one(call, {})
            call.cancel()
        state = await mesh.until_idle()
    assert state.replicas[0].num_slots_used == 0
