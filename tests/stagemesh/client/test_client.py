"""Both clients against a scripted API, over real sockets."""

import asyncio
from collections.abc import AsyncIterator

import pytest

import stagemesh
from protos import inference_pb2_grpc, mesh_pb2_grpc
from runtime.rpc.channels import bind, make_server
from stagemesh import AsyncClient, Client, GenerationRequest, Model, StagemeshRpcError, Update
from tests.stagemesh.echo_server import EchoServer


@pytest.fixture
async def api() -> EchoServer:
    return EchoServer()


@pytest.fixture
async def target(api: EchoServer) -> AsyncIterator[str]:
    """The address of `api`."""
    server = make_server()
    inference_pb2_grpc.add_InferenceServicer_to_server(api, server)
    mesh_pb2_grpc.add_OperationsServicer_to_server(api, server)
    address = await bind(server, "127.0.0.1:0")
    await server.start()
    yield address
    await server.stop(0)


async def collect(updates: AsyncIterator[Update]) -> str:
    return "".join([update.text async for update in updates])


def request(text: str) -> GenerationRequest:
    return GenerationRequest(prompts=(text,))


async def test_async_infer_streams_updates(target: str) -> None:
    async with AsyncClient(target) as client:
        assert await collect(client.infer(request("hello"))) == "hello"
        assert (await client.state()).model == "tiny"


async def test_sync_infer_streams_updates(target: str) -> None:
    def run() -> tuple[str, str]:
        with Client(target) as client:
            text = "".join(update.text for update in client.infer(request("hello")))
            return text, client.state().model

    assert await asyncio.to_thread(run) == ("hello", "tiny")


async def test_async_client_unary_calls_return_their_results(target: str) -> None:
    async with AsyncClient(target) as client:
        assert await client.tokenize("ab") == (97, 98)
        assert await client.detokenize((97, 98)) == "ab"
        assert await client.models() == (Model("tiny", 8),)
        assert await client.cancel("four") == 4


async def test_sync_client_unary_calls_return_their_results(target: str) -> None:
    def run() -> None:
        with Client(target) as client:
            assert client.tokenize("ab") == (97, 98)
            assert client.detokenize((97, 98)) == "ab"
            assert client.models() == (Model("tiny", 8),)
            assert client.cancel("four") == 4

    await asyncio.to_thread(run)


async def test_async_infer_rejected_raises_the_servers_code(target: str) -> None:
    async with AsyncClient(target, retry_seconds=0) as client:
        with pytest.raises(StagemeshRpcError, match="limit 3") as caught:
            await collect(client.infer(request("full")))
    assert (caught.value.code, caught.value.status) == ("queue_full", "RESOURCE_EXHAUSTED")


async def test_sync_infer_rejected_raises_the_servers_code(target: str) -> None:
    def run() -> None:
        with Client(target, retry_seconds=0) as client:
            list(client.infer(request("full")))

    with pytest.raises(StagemeshRpcError, match="limit 3") as caught:
        await asyncio.to_thread(run)
    assert (caught.value.code, caught.value.retry_after_seconds) == ("queue_full", 1)


async def test_async_infer_rejected_for_capacity_is_retried_with_its_id(
    target: str, api: EchoServer
) -> None:
    async with AsyncClient(target) as client:
        assert await collect(client.infer(request("busy"))) == "busy"
    assert len(api.asked_ids) == 2
    assert len(set(api.asked_ids)) == 1


async def test_sync_infer_rejected_for_capacity_is_retried_with_its_id(
    target: str, api: EchoServer
) -> None:
    def run() -> str:
        with Client(target) as client:
            return "".join(update.text for update in client.infer(request("busy")))

    assert await asyncio.to_thread(run) == "busy"
    assert len(api.asked_ids) == 2
    assert len(set(api.asked_ids)) == 1


async def test_infer_past_its_deadline_raises_deadline_exceeded(target: str) -> None:
    async with AsyncClient(target) as client:
        with pytest.raises(StagemeshRpcError, match="deadline") as caught:
            await collect(client.infer(request("hang"), timeout_seconds=0.2))
    assert caught.value.code == "deadline_exceeded"


async def test_async_infer_left_early_cancels_the_call(target: str, api: EchoServer) -> None:
    async with AsyncClient(target) as client:
        updates = client.infer(request("hang"))
        assert (await anext(updates)).text == "h"
        await updates.aclose()
        async with asyncio.timeout(5):
            await api.abandoned.wait()


async def test_sync_infer_left_early_cancels_the_call(target: str, api: EchoServer) -> None:
    def run() -> str:
        with Client(target) as client:
            updates = client.infer(request("hang"))
            first = next(updates)
            updates.close()
            return first.text

    assert await asyncio.to_thread(run) == "h"
    async with asyncio.timeout(5):
        await api.abandoned.wait()


TEXTS = [f"text {number}" for number in range(20)]


async def test_async_generate_many_yields_answers_in_order_with_bounded_concurrency(
    target: str, api: EchoServer
) -> None:
    async with AsyncClient(target) as client:
        answers = client.generate_many(map(request, TEXTS), max_concurrency=4)
        assert [answer.text async for [answer] in answers] == TEXTS
    assert api.most_open <= 4


async def test_sync_generate_many_yields_answers_in_order_with_bounded_concurrency(
    target: str, api: EchoServer
) -> None:
    def run() -> list[str]:
        with Client(target) as client:
            answers = client.generate_many(map(request, TEXTS), max_concurrency=4)
            return [answer.text for [answer] in answers]

    assert await asyncio.to_thread(run) == TEXTS
    assert api.most_open <= 4


async def test_async_generate_many_failure_cancels_the_others(target: str, api: EchoServer) -> None:
    async with AsyncClient(target, retry_seconds=0) as client:
        with pytest.raises(StagemeshRpcError, match="limit 3"):
            async for _ in client.generate_many(map(request, ("full", "hang", "hang"))):
                pass
        async with asyncio.timeout(5):
            while api.num_open:
                await client.state()


async def test_sync_generate_many_iterates_requests_that_use_the_client(target: str) -> None:
    def run() -> list[str]:
        with Client(target) as client:
            requests = (request(client.detokenize(client.tokenize(text))) for text in TEXTS)
            return [answer.text for [answer] in client.generate_many(requests)]

    assert await asyncio.to_thread(run) == TEXTS


async def test_sync_call_of_a_closed_client_raises_value_error(target: str) -> None:
    def run() -> None:
        client = Client(target)
        updates = client.infer(request("hang"))
        next(updates)
        client.close()
        with pytest.raises(ValueError, match="is closed"):
            client.state()
        with pytest.raises(ValueError, match="is closed"):
            next(updates)
        client.close()

    await asyncio.to_thread(run)


async def test_client_without_a_mesh_raises_a_hint_to_start_one() -> None:
    async with AsyncClient("127.0.0.1:1") as client:
        with pytest.raises(StagemeshRpcError, match=r"stagemesh serve MODEL") as caught:
            await client.state()
    assert caught.value.code == "unreachable"


def test_package_exports_all_names() -> None:
    assert all(getattr(stagemesh, name) is not None for name in stagemesh.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        stagemesh.nonsense  # noqa: B018
