"""Streams over real servers and channels: how they end, and how much goes through."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest

from runtime.errors import DeadlineExceededError, QueueFullError
from runtime.rpc.channels import MAX_MESSAGE_BYTES, error_from_rpc
from tests.runtime.rpc.one_method import Context, serving


async def test_stream_handler_raising_midway_delivers_then_fails() -> None:
    async def handler(request: bytes, context: Context) -> AsyncIterator[bytes]:
        yield b"one"
        yield b"two"
        raise QueueFullError(num_waiting=1, limit=1)

    async with serving("Call", grpc.unary_stream_rpc_method_handler(handler)) as channel:
        call = channel.unary_stream("/test/Call")(b"", timeout=10)
        received = [await call.read(), await call.read()]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()

    assert received == [b"one", b"two"]
    assert error_from_rpc(caught.value)[0] == "queue_full"


async def test_stream_handler_of_cancelled_call_is_closed_at_once() -> None:
    closed = asyncio.Event()

    async def handler(request: bytes, context: Context) -> AsyncIterator[bytes]:
        try:
            while True:
                yield bytes(2**20)
        finally:
            closed.set()

    async with serving("Call", grpc.unary_stream_rpc_method_handler(handler)) as channel:
        call = channel.unary_stream("/test/Call")(b"", timeout=10)
        await call.read()
        call.cancel()
        await asyncio.wait_for(closed.wait(), 10)


async def test_stream_whose_write_is_cut_short_ends_without_noise(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ended = asyncio.Event()

    async def handler(request: bytes, context: Context) -> None:
        try:
            async with asyncio.timeout(0.2):
                while True:
                    await context.write(bytes(1 << 20))
        except TimeoutError:
            raise DeadlineExceededError from None
        finally:
            ended.set()

    async with serving("Call", grpc.unary_stream_rpc_method_handler(handler)) as channel:
        call = channel.unary_stream("/test/Call")(b"", timeout=10)
        await ended.wait()
        call.cancel()

    assert caplog.records == []


async def test_bidirectional_handler_that_writes_itself_still_works() -> None:
    async def handler(requests: AsyncIterator[bytes], context: Context) -> None:
        async for request in requests:
            await context.write(request * 2)

    async with serving("Call", grpc.stream_stream_rpc_method_handler(handler)) as channel:
        call = channel.stream_stream("/test/Call")(timeout=10)
        await call.write(b"ab")
        answer = await call.read()
        await call.done_writing()
        end = await call.read()

    assert answer == b"abab"
    assert end is grpc.aio.EOF


async def test_message_of_nearly_the_limit_passes_both_ways() -> None:
    async def handler(request: bytes, context: Context) -> bytes:
        return request

    payload = bytes(MAX_MESSAGE_BYTES - 1024)
    async with serving("Call", grpc.unary_unary_rpc_method_handler(handler)) as channel:
        answer = await channel.unary_unary("/test/Call")(payload, timeout=30)

    assert answer == payload
