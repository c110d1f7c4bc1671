"""Owns the way of an answer to its HTTP client, whole or as server-sent events, while it listens.

A client that goes away is noticed at once, also while its request waits in line, and its request is
cancelled. The status line is sent with the first token: until then an error has its own status.
"""

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from coordinator.admission.admission import Admission
from coordinator.api.http.connection import while_connected
from coordinator.api.http.errors import error_body, rename_field
from coordinator.api.http.response_builder import (
    JSON,
    ChoiceAccumulator,
    ParsedCall,
    ResponseBuilder,
    count_body,
    usage_body,
)
from coordinator.output.output_stream import OutputStream
from coordinator.security.api_keys import Tenant
from runtime.errors import InvalidRequestError, StagemeshError
from runtime.host.logs import get_logger
from runtime.protocol.inference_types import PromptToken, Token, Update, Usage

_EVENT_HEADERS: Final = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    # Or nginx would collect the events.
    "x-accel-buffering": "no",
}

# Log-probabilities that are put into words at once, in about 10 ms.
_INLINE_LOGPROBS: Final = 2_048

_log = get_logger()


class GeneratedResponse(Response):
    """A response that is generated while it is sent."""

    def __init__(self, admission: Admission, call: ParsedCall, tenant: Tenant) -> None:
        super().__init__()
        self._admission = admission
        self._tenant = tenant
        self._call = call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Generates until the answer is complete or the client has left."""
        await while_connected(receive, send, self._respond)

    async def _respond(self, send: Send) -> None:
        call = self._call
        try:
            form = call.make_form(await self._admission.model())
            async with self._admission.generate(call.request, self._tenant, "http") as output:
                envelope = _Envelope(call, form, output)
                if call.delivery.stream:
                    await _Events(send, envelope, output).send_all()
                else:
                    await _send_json(send, await envelope.whole(output))
        except InvalidRequestError as error:
            raise rename_field(error, call.field_names) from None


class _Envelope:
    """What stands around the choices of one call."""

    def __init__(self, call: ParsedCall, form: ResponseBuilder, output: OutputStream) -> None:
        self.call = call
        self.form = form
        self.num_answers = output.num_answers
        self._num_choices = output.num_choices
        self._prompt_lengths = output.prompt_lengths
        self._created = int(time.time())

    async def whole(self, output: OutputStream) -> bytes:
        """The answer as JSON, once it is complete."""
        answers = [ChoiceAccumulator() for _ in range(self.num_answers)]
        num_logprobs = 0
        async for update in output:
            answers[self.number(update)].add(update)
            num_logprobs += _num_logprobs((*update.prompt_tokens, *update.tokens))
        if num_logprobs <= _INLINE_LOGPROBS:
            return _encode(self._body(answers))
        return await asyncio.to_thread(lambda: _encode_in_turns(self._body(answers)))

    def _body(self, answers: list[ChoiceAccumulator]) -> JSON:
        choices = [self.form.choice(index, answer) for index, answer in enumerate(answers)]
        usages = [answer.finish.usage for answer in answers if answer.finish is not None]
        return self._wrap(self.form.name, choices) | {
            "usage": usage_body(usages, self._num_choices)
        }

    def number(self, update: Update) -> int:
        """A choice's `index` at this API: the first prompt's choices, then the second's."""
        return update.index * self._num_choices + update.choice

    def chunk(self, choice: JSON, num_tokens: int) -> JSON:
        """One event of a stream; `usage` is null on all but the last, for those who want it.

        Or it is the choice's own so far, of `num_tokens` generated ones.
        """
        body = self._wrap(self.form.chunk_name, [choice])
        if self.call.delivery.continuous_usage:
            prompt_length = self._prompt_lengths[choice["index"] // self._num_choices]
            return body | {"usage": count_body(prompt_length, num_tokens)}
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
        self._num_tokens = [0] * envelope.num_answers

    async def send_all(self) -> None:
        """All events and `[DONE]`; what fails after the first is told as an event, without it."""
        usages: dict[int, Usage] = {}
        form = self._envelope.form
        try:
            async for update in self._output:
                if not self._has_started:
                    await self._start()
                for part in _parts(update):
                    number = self._envelope.number(part)
                    self._num_tokens[number] += len(part.tokens)
                    for choice in form.chunks(number, part):
                        await self._write_choice(number, choice)
                    await asyncio.sleep(0)  # writing alone need not give up the event loop
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
            for choice in self._envelope.form.openings(index):
                await self._write_choice(index, choice)

    async def _write_choice(self, number: int, choice: JSON) -> None:
        await self._write(self._envelope.chunk(choice, self._num_tokens[number]))

    async def _write(self, body: JSON) -> None:
        await self._write_data(_encode(body))

    async def _write_data(self, data: bytes) -> None:
        event = b"data: %b\n\n" % data
        await self._send({"type": "http.response.body", "body": event, "more_body": True})


def _parts(update: Update) -> Iterator[Update]:
    """An update with many log-probabilities, which a slow client may have, in bearable ones.

    The text comes with the last, because it belongs to the tokens as a whole.
    """
    tokens, prompt_tokens = update.tokens, update.prompt_tokens
    while _num_logprobs(prompt_tokens) > _INLINE_LOGPROBS and len(prompt_tokens) > 1:
        count = max(1, len(prompt_tokens) * _INLINE_LOGPROBS // _num_logprobs(prompt_tokens))
        yield replace(update, text="", tokens=(), finish=None, prompt_tokens=prompt_tokens[:count])
        prompt_tokens = prompt_tokens[count:]
    update = replace(update, prompt_tokens=prompt_tokens)
    while _num_logprobs(tokens) > _INLINE_LOGPROBS and len(tokens) > 1:
        count = max(1, len(tokens) * _INLINE_LOGPROBS // _num_logprobs(tokens))
        yield replace(update, text="", tokens=tokens[:count], finish=None)
        update = replace(update, prompt_tokens=())
        tokens = tokens[count:]
    yield replace(update, tokens=tokens)


def _num_logprobs(tokens: Sequence[Token | PromptToken]) -> int:
    return sum(1 + len(token.top_logprobs) for token in tokens)


def _encode(body: JSON) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def _encode_in_turns(body: JSON) -> bytes:
    """In Python alone, so that the event loop gets its turns of the interpreter meanwhile."""
    encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
    return "".join(encoder.iterencode(body)).encode()


async def _send_json(send: Send, content: bytes) -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(content)).encode()),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": content})
