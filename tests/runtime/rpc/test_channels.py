"""Tests of listening and of errors on the wire, over real servers and channels."""

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message import DecodeError
from structlog.testing import capture_logs

from runtime.errors import EpochEndedError, PromptTooLongError, QueueFullError, UnknownModelError
from runtime.rpc.channels import (
    CHANNEL_OPTIONS,
    SERVER_OPTIONS,
    dial,
    epoch_error_from_rpc,
    error_from_rpc,
)
from tests.runtime.rpc.one_method import Context, serving


async def test_error_of_an_address_without_a_listener_has_the_reason_only() -> None:
    async with dial("127.0.0.1:1") as channel:
        call: Any = channel.unary_unary("/test/Call")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"", timeout=10)
    assert error_from_rpc(caught.value) == ("unavailable", "Connection refused")


async def _unary_failure(raised: Exception) -> tuple[grpc.StatusCode, str, str]:
    async def handler(request: bytes, context: Context) -> bytes:
        raise raised

    async with serving("Call", grpc.unary_unary_rpc_method_handler(handler)) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/test/Call")(b"", timeout=10)
    return caught.value.code(), *error_from_rpc(caught.value)


async def test_epoch_error_over_two_calls_keeps_its_cause() -> None:
    error = EpochEndedError(cause="position", detail="slot 3: expected position 1, got 2")
    for who in ("stage 1", "stage 0"):

        async def handler(
            request: bytes, context: Context, error: EpochEndedError = error
        ) -> bytes:
            raise error

        async with serving("Call", grpc.unary_unary_rpc_method_handler(handler)) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary("/test/Call")(b"", timeout=10)
        error = epoch_error_from_rpc(caught.value, who)

    assert error.cause == "position"
    assert error.detail == "stage 0: stage 1: slot 3: expected position 1, got 2"


def test_end_of_an_epoch_whose_status_grpc_has_hidden_is_no_more_than_a_closed_stream() -> None:
    error = grpc.aio.AioRpcError(
        grpc.StatusCode.INTERNAL,
        grpc.aio.Metadata(),
        grpc.aio.Metadata(),
        "Internal error from Core",
    )
    assert epoch_error_from_rpc(error, "stage 1").cause == "stream_closed"


async def test_handler_raising_error_ends_call_with_its_status_code_and_message() -> None:
    error = PromptTooLongError(num_tokens=9, max_tokens=8)

    status, code, message = await _unary_failure(error)

    assert status is grpc.StatusCode.INVALID_ARGUMENT
    assert (code, message) == ("prompt_too_long", str(error))


async def test_handler_raising_group_ends_call_with_the_error_in_it() -> None:
    error = QueueFullError(num_waiting=3, limit=3)

    status, code, _ = await _unary_failure(ExceptionGroup("tasks", [ValueError(), error]))

    assert status is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert code == "queue_full"


async def test_handler_raising_unexpected_logs_it_and_hides_its_text() -> None:
    raised = ValueError("secret")

    with capture_logs() as logs:
        status, code, message = await _unary_failure(raised)

    assert [(line["event"], line["exc_info"]) for line in logs] == [("rpc_failed", raised)]
    assert status is grpc.StatusCode.INTERNAL
    assert code == "internal"
    assert "secret" not in message


def _decode(data: bytes) -> bytes:
    raise DecodeError("not a message")


async def test_message_that_is_no_protobuf_is_its_senders_error() -> None:
    async def unary(request: bytes, context: Context) -> bytes:
        return request

    async def stream(_: object, context: Context) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(context.read())

    handlers: tuple[Any, Any] = (
        grpc.unary_unary_rpc_method_handler(unary, request_deserializer=_decode),
        grpc.stream_stream_rpc_method_handler(stream, request_deserializer=_decode),
    )
    for handler in handlers:
        with capture_logs() as logs:
            async with serving("Call", handler) as channel:
                kind = channel.stream_stream if handler.request_streaming else channel.unary_stream
                call = kind("/test/Call")(iter([b"x"]) if handler.request_streaming else b"x")
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call.read()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert error_from_rpc(caught.value)[0] == "invalid_request"
        assert [line["log_level"] for line in logs] == ["info"]


async def test_error_with_huge_text_is_cut_to_fit_a_trailer() -> None:
    error = UnknownModelError(model="\U0001f600" * 100_000, served="a")

    status, code, message = await _unary_failure(error)

    assert status is grpc.StatusCode.NOT_FOUND
    assert code == "unknown_model"
    assert 100 < len(message) <= 150


async def test_call_without_a_server_has_grpcs_status_as_code() -> None:
    async with dial("127.0.0.1:1") as channel:
        call: Any = channel.unary_unary("/test/Call")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"", timeout=10)

    assert error_from_rpc(caught.value)[0] == "unavailable"


def test_keepalive_of_both_ends_agrees() -> None:
    # Case 26 (TensorRT-LLM#11992): a server that does not permit its clients' pings ends their
    # streams.
    client, server = dict(CHANNEL_OPTIONS), dict(SERVER_OPTIONS)
    for options in (client, server):
        assert options["grpc.http2.max_pings_without_data"] == 0
        assert options["grpc.keepalive_permit_without_calls"] == 1
    assert client["grpc.keepalive_time_ms"] > server["grpc.http2.min_ping_interval_without_data_ms"]
    assert client["grpc.keepalive_time_ms"] + client["grpc.keepalive_timeout_ms"] <= 15_000
    assert client["grpc.http2.ping_timeout_ms"] == client["grpc.keepalive_timeout_ms"]
