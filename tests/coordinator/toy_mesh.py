"""A whole coordinator in this process, between a gRPC client and fake workers."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
import httpx

from coordinator.options import CoordinatorOptions
from coordinator.server import Addresses, serve_coordinator
from protos import inference_pb2, inference_pb2_grpc, mesh_pb2, mesh_pb2_grpc
from runtime.rpc import channels
from tests.coordinator.fake_worker import FakeWorker, fake_worker


@dataclass(slots=True)
class Answer:
    """What a client has received for one prompt."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    last: inference_pb2.InferResponse = field(default_factory=inference_pb2.InferResponse)
    seed: int | None = None


@dataclass(slots=True)
class ToyMesh:
    """A running coordinator and the ways to it."""

    addresses: Addresses
    stop: asyncio.Event
    channel: grpc.aio.Channel
    serving: asyncio.Task[None]
    workers: list[FakeWorker]
    stack: AsyncExitStack
    # What the calls that ask for the state carry.
    metadata: tuple[tuple[str, str], ...] = ()

    @property
    def api(self) -> str:
        """Where the gRPC API listens."""
        return self.addresses.grpc

    @property
    def mesh(self) -> str:
        """Where workers join."""
        return self.addresses.mesh

    def http(self) -> httpx.AsyncClient:
        """A client of the HTTP API, to be closed."""
        return httpx.AsyncClient(base_url=f"http://{self.addresses.http}", timeout=30)

    async def add_worker(self, worker_id: str, **behaviour: Any) -> FakeWorker:
        """One more fake worker, which joins."""
        worker = await self.stack.enter_async_context(
            fake_worker(worker_id, self.mesh, **behaviour)
        )
        self.workers.append(worker)
        return worker

    def infer(self, request: inference_pb2.InferRequest, **options: Any) -> Any:
        """Starts an Infer call."""
        return inference_pb2_grpc.InferenceStub(self.channel).Infer(request, **options)

    async def state(self) -> mesh_pb2.GetStateResponse:
        """The coordinator's state."""
        operations = mesh_pb2_grpc.OperationsStub(self.channel)
        return await operations.GetState(mesh_pb2.GetStateRequest(), metadata=self.metadata)

    async def drain(self, target: str, grace_seconds: float = 30.0) -> list[str]:
        """Has a worker or a replica leave; the addresses of those that did."""
        request = mesh_pb2.DrainRequest(target=target, grace_seconds=grace_seconds)
        async with channels.dial(self.mesh) as channel:
            answer = await mesh_pb2_grpc.OperationsStub(channel).Drain(request)
        return list(answer.workers)

    async def until(
        self, reached: Callable[[mesh_pb2.GetStateResponse], bool]
    ) -> mesh_pb2.GetStateResponse:
        """Asks for the state until it is as wanted; the test's timeout bounds the wait."""
        while not reached(state := await self.state()):
            pass
        return state

    async def until_ready(self) -> mesh_pb2.GetStateResponse:
        """Requests are being served, by every replica."""
        return await self.until(
            lambda state: state.ready and all(r.serving for r in state.replicas)
        )

    async def until_idle(self) -> mesh_pb2.GetStateResponse:
        """No request is left, and no slot or block in use here or on any living fake stage."""
        state = await self.until(lambda state: state.num_running + state.num_waiting == 0)
        for replica in state.replicas:
            assert (replica.num_kv_blocks_used, replica.num_slots_used) == (0, 0)
        for worker in self.workers:
            # What an ended epoch held is nobody's; it is cleared when the next one opens.
            while state.ready and worker.is_alive and worker.stage.slots.tokens:
                state = await self.state()
                if not any(worker.stage.worker_id in ids for ids in _working(state)):
                    break
        return state


@asynccontextmanager
async def toy_mesh(
    folder: Path,
    *,
    num_workers: int | None = None,
    behaviour: dict[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[ToyMesh]:
    """A coordinator for the toy model in `folder`; as many fake workers as it needs by default."""
    addresses = dict.fromkeys(("grpc", "http", "mesh"), "127.0.0.1:0")
    settings: dict[str, Any] = {"pp": 2, "backoff_seconds": 0.01, "grace_seconds": 5.0}
    settings["settle_seconds"] = 0.0
    # Fake workers send no heartbeats: on a busy machine a test may take longer than they may miss.
    settings["heartbeat_timeout_seconds"] = 600.0
    config = CoordinatorOptions(model=str(folder), **(addresses | settings | options))
    stop = asyncio.Event()
    started: asyncio.Future[Addresses] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve_coordinator(config, stop, started))
    async with AsyncExitStack() as stack:
        await asyncio.wait((serving, started), return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            await serving
        bound = await started
        channel = await stack.enter_async_context(channels.dial(bound.grpc))
        count = config.num_workers if num_workers is None else num_workers
        toy = ToyMesh(bound, stop, channel, serving, [], stack)
        try:
            for number in range(count):
                await toy.add_worker(f"w{number}", **(behaviour or {}))
            yield toy
            if not stop.is_set():
                await toy.until_idle()
        finally:
            stop.set()
            await serving


def _working(state: mesh_pb2.GetStateResponse) -> list[list[str]]:
    """The workers of each stage of the replicas that serve."""
    replicas = [replica for replica in state.replicas if replica.serving]
    return [list(stage.worker_ids) for replica in replicas for stage in replica.stages]


def token_request(
    *prompts: Sequence[int], max_tokens: int | None = 8, **sampling: Any
) -> inference_pb2.InferRequest:
    """A request with prompts of token ids."""
    return inference_pb2.InferRequest(
        prompts=[
            inference_pb2.Prompt(token_ids=inference_pb2.TokenIds(ids=prompt)) for prompt in prompts
        ],
        max_tokens=max_tokens,
        sampling=inference_pb2.SamplingParams(**sampling),
    )


async def collect(call: Any, answers: dict[int, Answer] | None = None) -> dict[int, Answer]:
    """Reads a call to its end, per prompt; `answers` shows what came so far if it fails."""
    answers = {} if answers is None else answers
    while await read_one(call, answers):
        pass
    return answers


async def read_one(call: Any, answers: dict[int, Answer]) -> bool:
    """Adds one response of a call to `answers`; False at its end."""
    response = await call.read()
    if not isinstance(response, inference_pb2.InferResponse):
        return False
    answer = answers.setdefault(response.index, Answer())
    answer.text += response.text
    answer.tokens += [token.id for token in response.tokens]
    answer.last = response
    if response.HasField("seed"):
        answer.seed = response.seed
    return True
