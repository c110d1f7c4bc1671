"""Owns the way of an answer to its HTTP client, whole or as server-sent events, while it listens.

A client that goes away is noticed at once, also while its request waits in line, and its request is
cancelled. The status line is sent with the first token: until then an error has its own status.
"""

import asyncio
import json
import time
from collections.abc import Coroutine
from typing import Any, Final

from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from coordinator.admission import Admission
from coordinator.http.errors import error_body, rename_field
from coordinator.http.form import JSON, Answer, Call, Form, usage_body
from coordinator.http.parameters import FIELD_NAMES
from coordinator.output import OutputStream
from coordinator.requests import Update, Usage
from runtime.errors import InvalidRequestError, StagemeshError
from runtime.logs import get_logger

_EVENT_HEADERS: Final = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    # Or nginx would collect the events.
    "x-accel-buffering": "no",
}

_log = get_logger()


class GeneratedResponse(Response):
    """A response that is generated while it is sent."""

    def __init__(self, admission: Admission, call: Call) -> None:
        super().__init__()
        self._admission = admission
        self._call = call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Generates until the answer is complete or the client has left."""
        await while_connected(receive, self._respond(scope, receive, send))

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = self._call
        try:
            form = call.make_form(await self._admission.model())
            async with self._admission.generate(call.request) as output:
                envelope = _Envelope(call, form, output)
                if call.delivery.stream:
                    await _Events(send, envelope, output).send_all()
                else:
                    body = await envelope.whole(output)
                    await JSONResponse(body)(scope, receive, send)
        except InvalidRequestError as error:
            names = {**FIELD_NAMES, "num_logprobs": call.logprobs_name}
            raise rename_field(error, names) from None


async def while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Runs `work`, cancelled when the client goes away; then raises `ClientDisconnect`."""
    async with asyncio.TaskGroup() as tasks:
        working = tasks.create_task(work)
        leaving = tasks.create_task(_disconnected(receive))
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        has_left = not working.done()
        working.cancel()
        leaving.cancel()
    if has_left:
        raise ClientDisconnect


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class _Envelope:
    """What stands around the choices of one call."""

    def __init__(self, call: Call, form: Form, output: OutputStream) -> None:
        self.call = call
        self.form = form
        self.num_answers = output.num_answers
        self._num_choices = output.num_choices
        self._created = int(time.time())

    async def whole(self, output: OutputStream) -> JSON:
        """The answer, once it is complete."""
        answers = [Answer() for _ in range(self.num_answers)]
        async for update in output:
            answers[self.number(update)].add(update)
        choices = [self.form.choice(index, answer) for index, answer in enumerate(answers)]
        usages = [answer.finish.usage for answer in answers if answer.finish is not None]
        return self._wrap(self.form.name, choices) | {
            "usage": usage_body(usages, self._num_choices)
        }

    def number(self, update: Update) -> int:
        """A choice's `index` at this door: the first prompt's choices, then the second's."""
        return update.index * self._num_choices + update.choice

    def chunk(self, choice: JSON) -> JSON:
        """One event of a stream; `usage` is null on all but the last, for those who want it."""
        body = self._wrap(self.form.chunk_name, [choice])
        return body | {"usage": None} if self.call.delivery.include_usage else body

    def usage_chunk(self, usages: list[Usage]) -> JSON:
        """The last event, without choices."""
        return self._wrap(self.form.chunk_name, []) | {
            "usage": usage_body(usages, self._num_choices)
        }

    def _wrap(self, name: str, choices: list[JSON]) -> JSON:
        return {
            "id": self.form.id_prefix + self.call.request.request_id,
            "object": name,
            "created": self._created,
            "model": self.form.model_name,
            "choices": choices,
        }


class _Events:
    """One stream of server-sent events; `send` waits while its client does not read."""

    def __init__(self, send: Send, envelope: _Envelope, output: OutputStream) -> None:
        self._send = send
        self._envelope = envelope
        self._output = output
        self._has_started = False

    async def send_all(self) -> None:
        """All events and `[DONE]`; what fails after the first is told as an event, without it."""
        usages: list[Usage] = []
        form = self._envelope.form
        try:
            async for update in self._output:
                if not self._has_started:
                    await self._start()
                for choice in form.chunks(self._envelope.number(update), update):
                    await self._write(self._envelope.chunk(choice))
                if update.finish is not None:
                    usages.append(update.finish.usage)
        except StagemeshError as error:
            if not self._has_started:
                raise
            _log.info("stream_failed", code=error.code, message=str(error))
            await self._write(error_body(error))
        else:
            if self._envelope.call.delivery.include_usage:
                await self._write(self._envelope.usage_chunk(usages))
            await self._write_text("[DONE]")
        await self._send({"type": "http.response.body", "body": b""})

    async def _start(self) -> None:
        self._has_started = True
        headers = [(name.encode(), value.encode()) for name, value in _EVENT_HEADERS.items()]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        for index in range(self._envelope.num_answers):
            for choice in self._envelope.form.openings(index):
                await self._write(self._envelope.chunk(choice))

    async def _write(self, body: JSON) -> None:
        await self._write_text(json.dumps(body, ensure_ascii=False, separators=(",", ":")))

    async def _write_text(self, text: str) -> None:
        event = f"data: {text}\n\n".encode()
        await self._send({"type": "http.response.body", "body": event, "more_body": True})
