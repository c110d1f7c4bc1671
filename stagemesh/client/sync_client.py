"""The blocking client of a mesh's gRPC API: runs the asynchronous client in a thread of its own."""

import asyncio
import sys
import threading
from collections import deque
from collections.abc import AsyncGenerator, Coroutine, Generator, Iterable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from runtime.protocol.inference_types import GenerationRequest, Model, Prompt, Update
from runtime.rpc.channels import ChannelTls
from stagemesh.client.async_client import CALL_TIMEOUT_SECONDS, DEFAULT_TARGET, AsyncClient
from stagemesh.client.completion import Completion
from stagemesh.client.retry import RETRY_SECONDS
from stagemesh.client.state import MeshState

ResultT = TypeVar("ResultT")

# Interval at which a thread that waits for an abandoned stream looks whether the client has ended.
_CHECK_SECONDS: Final = 0.2


class Client:
    """A connection to one mesh, for programs without an event loop; use it as a context manager.

    The methods are those of `AsyncClient`, and may be called from several threads.
    """

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        api_key: str | None = None,
        tls: ChannelTls | None = None,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        """`tls` is for APIs with a certificate, such as `trusting(Path("ca.pem"))`.

        Failed generations are retried for `retry_seconds`, as `retry.py` describes.
        """

        async def connect() -> AsyncClient:
            return AsyncClient(target, api_key=api_key, tls=tls, retry_seconds=retry_seconds)

        self.target = target
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="stagemesh-client", daemon=True
        )
        self._thread.start()
        # Held while a call is submitted: no call may reach the loop once it is to stop.
        self._lock = threading.Lock()
        self._is_closed = False
        try:
            self._client = self._run(connect())
        except BaseException:
            self._stop_loop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection and cancels its calls; later calls raise ValueError."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            closing = asyncio.run_coroutine_threadsafe(self._close(), self._loop)
        _result_of(closing)
        self._stop_loop()

    def infer(
        self, request: GenerationRequest, *, timeout_seconds: float | None = None
    ) -> Generator[Update, None, None]:
        """Streams the updates of all prompts, as `AsyncClient.infer`."""
        return self._iterate(self._client.infer(request, timeout_seconds=timeout_seconds))

    def generate(
        self, request: GenerationRequest, *, timeout_seconds: float | None = None
    ) -> tuple[Completion, ...]:
        """Returns the complete answers of a request, ordered by prompt and choice."""
        return self._run(self._client.generate(request, timeout_seconds=timeout_seconds))

    def generate_many(
        self,
        requests: Iterable[GenerationRequest],
        *,
        max_concurrency: int = 16,
        timeout_seconds: float | None = None,
    ) -> Generator[tuple[Completion, ...], None, None]:
        """Yields the complete answers of many requests, as `AsyncClient.generate_many`.

        `requests` is iterated in the calling thread.
        """
        running: deque[Future[tuple[Completion, ...]]] = deque()
        try:
            for request in requests:
                call = self._client.generate(request, timeout_seconds=timeout_seconds)
                running.append(self._submit(call))
                if len(running) >= max_concurrency:
                    yield _result_of(running.popleft())
            while running:
                yield _result_of(running.popleft())
        finally:
            for future in running:
                future.cancel()

    def state(self, *, timeout_seconds: float = CALL_TIMEOUT_SECONDS) -> MeshState:
        """Returns the state of the mesh."""
        return self._run(self._client.state(timeout_seconds=timeout_seconds))

    def tokenize(
        self, prompt: Prompt, *, timeout_seconds: float = CALL_TIMEOUT_SECONDS
    ) -> tuple[int, ...]:
        """Returns the token ids of a prompt, as in a generation."""
        return self._run(self._client.tokenize(prompt, timeout_seconds=timeout_seconds))

    def detokenize(
        self, token_ids: Sequence[int], *, timeout_seconds: float = CALL_TIMEOUT_SECONDS
    ) -> str:
        """Returns the text of tokens without special tokens."""
        return self._run(self._client.detokenize(token_ids, timeout_seconds=timeout_seconds))

    def models(self, *, timeout_seconds: float = CALL_TIMEOUT_SECONDS) -> tuple[Model, ...]:
        """Returns the served models."""
        return self._run(self._client.models(timeout_seconds=timeout_seconds))

    def cancel(self, request_id: str, *, timeout_seconds: float = CALL_TIMEOUT_SECONDS) -> int:
        """Cancels the requests with this id, of either API; returns their number."""
        return self._run(self._client.cancel(request_id, timeout_seconds=timeout_seconds))

    def drain(self, target: str, *, grace_seconds: float = 30.0) -> tuple[str, ...]:
        """Removes a worker or a replica from the mesh, as `AsyncClient.drain`."""
        return self._run(self._client.drain(target, grace_seconds=grace_seconds))

    def _run(self, call: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Runs `call` in the loop's thread and waits for its result."""
        return _result_of(self._submit(call))

    def _submit(self, call: Coroutine[Any, Any, ResultT]) -> Future[ResultT]:
        """Starts `call` in the loop's thread; raises ValueError if the client is closed."""
        with self._lock:
            if not self._is_closed:
                return asyncio.run_coroutine_threadsafe(call, self._loop)
        call.close()
        raise ValueError("the client is closed")

    def _iterate(self, stream: AsyncGenerator[ResultT, None]) -> Generator[ResultT, None, None]:
        # An interrupted step ends in the loop's thread before the stream is closed.
        lock = asyncio.Lock()

        async def next_item() -> ResultT | None:
            async with lock:
                return await anext(stream, None)

        async def close_stream() -> None:
            async with lock:
                await stream.aclose()

        try:
            while (item := self._run(next_item())) is not None:
                yield item
        finally:
            self._close_stream(close_stream())

    def _close_stream(self, closing: Coroutine[Any, Any, None]) -> None:
        """Closes a stream and waits for it, except where that could not end.

        The garbage collector may drop a stream in any thread: in one that submits a call, so this
        takes no lock; in the loop's own; or as the interpreter exits, when the loop's thread no
        longer runs.
        """
        if sys.is_finalizing() or self._is_closed:
            closing.close()
            return
        try:
            future = asyncio.run_coroutine_threadsafe(closing, self._loop)
        except RuntimeError:
            closing.close()
            return
        if threading.current_thread() is self._thread:
            return
        # A loop that was stopped in the meantime does not run it.
        while self._thread.is_alive():
            with suppress(CancelledError, TimeoutError):
                future.result(timeout=_CHECK_SECONDS)
            if future.done():
                return

    async def _close(self) -> None:
        await self._client.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._loop.shutdown_asyncgens()

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _result_of(future: Future[ResultT]) -> ResultT:
    """Waits for a call; an interrupt of the waiting thread cancels the call.

    Raises ValueError if the client was closed during the call.
    """
    try:
        return future.result()
    except CancelledError:
        raise ValueError("the client is closed") from None
    finally:
        future.cancel()
