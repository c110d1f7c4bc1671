"""Sends a generation to its HTTP client, as one JSON document or as server-sent events.

A disconnect of the client cancels its request at once, also while it waits in the queue. The status
line is sent with the first token, so that an error before it has its own status.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any, Final

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from coordinator.admission.admission import Admission
from coordinator.api.http.errors import error_body, rename_field
from coordinator.api.http.response_builder import (
    INLINE_LOGPROBS,
    JSON,
    ParsedCall,
    ResponseEnvelope,
    count_logprobs,
    encode,
)
from coordinator.output.output_stream import OutputStream
from coordinator.security.api_keys import Tenant
from runtime.errors import InvalidRequestError, StagemeshError
from runtime.host.logs import get_logger
from runtime.protocol.inference_types import Update, Usage

_EVENT_HEADERS: Final = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    # Keeps nginx from buffering the events.
    "x-accel-buffering": "no",
}

_log = get_logger()


class GeneratedResponse(Response):
    """A response that is generated while it is sent."""

    def __init__(self, admission: Admission, call: ParsedCall, tenant: Tenant) -> None:
        super().__init__()
        self._admission = admission
        self._tenant = tenant
        self._call = call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Generates until the answer is complete or the client disconnects."""
        await _while_connected(receive, send, self._respond)

    async def _respond(self, send: Send) -> None:
        call = self._call
        try:
            builder = call.make_builder(await self._admission.model())
            async with self._admission.generate(call.request, self._tenant, "http") as output:
                envelope = ResponseEnvelope(call, builder, output)
                if call.delivery.stream:
                    await _EventStream(send, envelope, output).send_all()
                else:
                    await _send_json(send, await envelope.whole(output))
        except InvalidRequestError as error:
            raise rename_field(error, call.field_names) from None


class _EventStream:
    """One stream of server-sent events; `send` blocks while the client does not read."""

    def __init__(self, send: Send, envelope: ResponseEnvelope, output: OutputStream) -> None:
        self._send = send
        self._envelope = envelope
        self._output = output
        self._has_started = False
        self._num_tokens = [0] * envelope.num_answers

    async def send_all(self) -> None:
        """Sends all events and `[DONE]`; an error after the first event is an event without it."""
        usages: dict[int, Usage] = {}
        builder = self._envelope.builder
        try:
            async for update in self._output:
                if not self._has_started:
                    await self._start()
                for part in _parts(update):
                    number = self._envelope.number(part)
                    self._num_tokens[number] += len(part.tokens)
                    for choice in builder.chunks(number, part):
                        await self._write_choice(number, choice)
                    await asyncio.sleep(0)  # a write need not yield to the event loop
                if update.finish is not None:
                    usages[self._envelope.number(update)] = update.finish.usage
        except StagemeshError as error:
            if not self._has_started:
                raise
            _log.info("stream_failed", code=error.code, message=str(error))
            await self._write(error_body(error))
        else:
            if self._envelope.call.delivery.include_usage:
                in_order = [usages[number] for number in sorted(usages)]
                await self._write(self._envelope.usage_chunk(in_order))
            await self._write_data(b"[DONE]")
        await self._send({"type": "http.response.body", "body": b""})

    async def _start(self) -> None:
        self._has_started = True
        headers = [(name.encode(), value.encode()) for name, value in _EVENT_HEADERS.items()]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        for index in range(self._envelope.num_answers):
            for choice in self._envelope.builder.openings(index):
                await self._write_choice(index, choice)

    async def _write_choice(self, number: int, choice: JSON) -> None:
        await self._write(self._envelope.chunk(choice, self._num_tokens[number]))

    async def _write(self, body: JSON) -> None:
        await self._write_data(encode(body))

    async def _write_data(self, data: bytes) -> None:
        event = b"data: %b\n\n" % data
        await self._send({"type": "http.response.body", "body": event, "more_body": True})


async def _while_connected(
    receive: Receive, send: Send, work: Callable[[Send], Coroutine[Any, Any, None]]
) -> None:
    """Runs `work`, which sends one response; cancels it if the client disconnects before its end.

    Raises `ClientDisconnect` then. The request's body must have been read.
    """
    is_complete = False

    async def tracking_send(message: Message) -> None:
        nonlocal is_complete
        # Set before it is sent: after a complete response, `receive` returns a disconnect, too.
        is_complete = message["type"] == "http.response.body" and not message.get("more_body")
        await send(message)

    async with asyncio.TaskGroup() as tasks:
        working = tasks.create_task(work(tracking_send))
        watching = tasks.create_task(_until_disconnected(receive))
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        watching.cancel()
        has_disconnected = not working.done() and not is_complete
        if has_disconnected:
            working.cancel()
    if has_disconnected:
        raise ClientDisconnect


async def _until_disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _parts(update: Update) -> Iterator[Update]:
    """Splits an update, so that each part has at most `INLINE_LOGPROBS` or one token.

    The last part has the text, which belongs to the tokens as a whole.
    """
    tokens, prompt_tokens = update.tokens, update.prompt_tokens
    while count_logprobs(prompt_tokens) > INLINE_LOGPROBS and len(prompt_tokens) > 1:
        count = max(1, len(prompt_tokens) * INLINE_LOGPROBS // count_logprobs(prompt_tokens))
        yield replace(update, text="", tokens=(), finish=None, prompt_tokens=prompt_tokens[:count])
        prompt_tokens = prompt_tokens[count:]
    update = replace(update, prompt_tokens=prompt_tokens)
    while count_logprobs(tokens) > INLINE_LOGPROBS and len(tokens) > 1:
        count = max(1, len(tokens) * INLINE_LOGPROBS // count_logprobs(tokens))
        yield replace(update, text="", tokens=tokens[:count], finish=None)
        update = replace(update, prompt_tokens=())
        tokens = tokens[count:]
    yield replace(update, tokens=tokens)


async def _send_json(send: Send, content: bytes) -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(content)).encode()),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": content})
