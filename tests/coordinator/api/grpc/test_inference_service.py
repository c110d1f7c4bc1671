"""The gRPC API's other calls, its metadata and its rich errors."""

from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from grpc_status import rpc_status

from protos import inference_pb2
from protos.inference_pb2_grpc import InferenceStub
from runtime.rpc.channels import error_from_rpc
from tests.coordinator.toy_mesh import collect, read_one, token_request, toy_mesh

PROMPT = (5, 6, 7)


async def test_tokenize_and_detokenize_need_no_worker(toy_folder: Path) -> None:
    chat = inference_pb2.Chat(messages=[inference_pb2.ChatMessage(role="user", content="abc")])
    async with toy_mesh(toy_folder, num_workers=0) as mesh:
        api = InferenceStub(mesh.channel)
        text = inference_pb2.TokenizeRequest(prompt=inference_pb2.Prompt(text="w5 w6"))
        answer = await api.Tokenize(text)
        assert (tuple(answer.token_ids), answer.max_model_len) == ((5, 6), 512)
        messages = inference_pb2.TokenizeRequest(prompt=inference_pb2.Prompt(chat=chat))
        assert tuple((await api.Tokenize(messages)).token_ids) == (3, 1)
        ids = inference_pb2.DetokenizeRequest(token_ids=(5, 6), model="toy")
        assert (await api.Detokenize(ids)).text == "w5 w6"


async def test_list_models_names_the_served_one(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder, num_workers=0) as mesh:
        answer = await InferenceStub(mesh.channel).ListModels(inference_pb2.ListModelsRequest())
    assert [(model.name, model.max_model_len) for model in answer.models] == [("toy", 512)]


async def test_tokens_of_a_bad_request_are_refused(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder, num_workers=0) as mesh:
        api = InferenceStub(mesh.channel)
        calls: list[tuple[Any, str]] = [
            (api.Tokenize(inference_pb2.TokenizeRequest()), "empty_prompt"),
            (api.Tokenize(inference_pb2.TokenizeRequest(model="x")), "unknown_model"),
            (api.Detokenize(inference_pb2.DetokenizeRequest(model="x")), "unknown_model"),
            (
                api.Detokenize(inference_pb2.DetokenizeRequest(token_ids=[97])),
                "token_out_of_vocabulary",
            ),
        ]
        for call, code in calls:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert error_from_rpc(caught.value)[0] == code


async def test_cancel_ends_a_request_of_either_api(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder) as mesh, mesh.http() as client:
        api = InferenceStub(mesh.channel)
        request = token_request(PROMPT, (8, 9), max_tokens=500)
        request.request_id = "mine"
        call = mesh.infer(request)
        await read_one(call, {})
        body = {"prompt": [5], "max_tokens": 500, "stream": True}
        headers = {"x-request-id": "mine"}
        async with client.stream("POST", "/v1/completions", json=body, headers=headers) as other:
            lines = other.aiter_lines()
            await anext(lines)
            answer = await api.Cancel(inference_pb2.CancelRequest(request_id="mine"))
            assert answer.num_cancelled == 2
            rest = [line async for line in lines]
        assert any("request_cancelled" in line for line in rest)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await collect(call)
        assert caught.value.code() is grpc.StatusCode.CANCELLED
        await mesh.until_idle()
        answer = await api.Cancel(inference_pb2.CancelRequest(request_id="mine"))
        assert answer.num_cancelled == 0


async def test_request_id_is_echoed_in_metadata(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder) as mesh:
        named = token_request(PROMPT)
        named.request_id = "in-message"
        cases = [
            (mesh.infer(named), "in-message"),
            (
                mesh.infer(token_request(PROMPT), metadata=(("x-request-id", "in-metadata"),)),
                "in-metadata",
            ),
        ]
        for call, expected in cases:
            metadata = dict(await call.initial_metadata())
            response = await call.read()
            assert (metadata["x-request-id"], response.request_id) == (expected, expected)
            await collect(call)


async def test_request_id_missing_is_created_and_sent_with_an_error_too(
    toy_folder: Path,
) -> None:
    async with toy_mesh(toy_folder) as mesh:
        unnamed = mesh.infer(token_request(PROMPT))
        made = dict(await unnamed.initial_metadata())["x-request-id"]
        assert made
        assert {response.request_id async for response in unnamed} == {made}
        refused = mesh.infer(
            token_request(PROMPT, top_p=1.5), metadata=(("x-request-id", "refused"),)
        )
        with pytest.raises(grpc.aio.AioRpcError):
            await collect(refused)
        assert dict(await refused.initial_metadata())["x-request-id"] == "refused"


async def test_full_queue_sends_grpc_clients_a_retry_delay(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder, num_workers=0, max_waiting=1) as mesh:
        await mesh.until(lambda state: state.phase.startswith("waiting"))
        waiting = mesh.infer(token_request(PROMPT))
        await mesh.until(lambda state: state.num_waiting == 1)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await collect(mesh.infer(token_request(PROMPT)))
        waiting.cancel()
    failed: Any = caught.value
    status = rpc_status.from_call(failed)
    assert failed.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert status is not None
    status.details[0].Unpack(info := ErrorInfo())
    status.details[1].Unpack(retry := RetryInfo())
    assert (info.reason, info.domain) == ("QUEUE_FULL", "stagemesh")
    assert info.metadata["limit"] == "1"
    assert retry.retry_delay.seconds >= 1


async def test_errors_have_details_for_grpc_clients(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder) as mesh:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await collect(mesh.infer(token_request(PROMPT, top_p=1.5)))
    failed: Any = caught.value
    status = rpc_status.from_call(failed)
    assert status is not None
    assert status.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    status.details[1].Unpack(bad := BadRequest())
    assert [violation.field for violation in bad.field_violations] == ["top_p"]


async def test_message_beyond_the_limit_is_refused_before_it_is_decoded(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder, max_request_bytes=1000) as mesh:
        await mesh.until_ready()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await collect(mesh.infer(token_request((5,) * 2000)))
        code, message = error_from_rpc(caught.value)
        assert (caught.value.code(), code) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "request_too_large",
        )
        assert "1,000 bytes" in message
        assert (await collect(mesh.infer(token_request(PROMPT))))[0].tokens
