"""Admits requests: quotas, validation, tokenization, queueing, and cancellation when a call ends.

All APIs use it, so that a request means the same at each. A request that cannot be served is
rejected with one typed error before it affects others.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from coordinator.admission.sequence_factory import RequestOrigin, TokenizedRequest, make_choices
from coordinator.engine.request_router import RequestRouter
from coordinator.output.choice_stream import ChoiceStream
from coordinator.output.output_processor import OutputProcessor
from coordinator.output.output_stream import OutputStream
from coordinator.requests.grammar_compiler import compile_grammar
from coordinator.requests.prompt_tokenization import token_ids
from coordinator.requests.validation import (
    check_min_tokens,
    check_num_logprobs,
    check_num_prompt_logprobs,
    check_request,
)
from coordinator.security.api_keys import ANONYMOUS, Tenant
from coordinator.security.rate_limits import Quotas
from coordinator.tokenization.model_info import ServedModel
from runtime.errors import (
    DeadlineExceededError,
    EmptyPromptError,
    PromptTooLongError,
    QueueFullError,
    RequestCancelledError,
    StagemeshError,
)
from runtime.host.logs import get_logger
from runtime.metrics.declarations import CoordinatorMetrics
from runtime.protocol.inference_types import GenerationRequest

_log = get_logger()


@dataclass(frozen=True, slots=True, eq=False)
class _Admitted:
    """What is needed to end a request from outside its call."""

    # The tenant's name and the client's request id.
    key: tuple[str, str]
    output: OutputStream
    sequence_ids: tuple[int, ...]


class Admission:
    """Admits each request with one call of `generate`."""

    def __init__(
        self,
        model: asyncio.Future[ServedModel],
        router: RequestRouter,
        outputs: OutputProcessor,
        max_model_len: int | None,
        max_waiting: int,
        metrics: CoordinatorMetrics,
    ) -> None:
        """`model` may still be loading: requests wait for it, at most `max_waiting` of them."""
        self._loading = model
        self._router = router
        self._outputs = outputs
        self._max_model_len = max_model_len
        self.max_prompts = max_waiting
        self._num_early = 0
        self._metrics = metrics
        self._quotas = Quotas(router.clock)
        # Requests between their admission and their end.
        self._admitted: dict[tuple[str, str], list[_Admitted]] = {}
        self._sequence_ids = itertools.count(1)

    @asynccontextmanager
    async def generate(
        self,
        request: GenerationRequest,
        tenant: Tenant,
        api: str,
        timeout_seconds: float | None = None,
        is_late: Callable[[], bool] = lambda: False,
    ) -> AsyncIterator[OutputStream]:
        """The output of an admitted request; its unfinished choices are cancelled at the end.

        `api`, `grpc` or `http`, labels the metrics. `timeout_seconds` is how long the client waits
        for the whole answer, None without a limit. `is_late` returns at the end whether the
        request's deadline has passed.

        Raises the errors of `check_request` and `Quotas.admit`, `EmptyPromptError`,
        `PromptTooLongError`, `QueueFullError`, and the cause if nothing is served.
        """
        arrival = self._router.clock()
        admitted: _Admitted | None = None
        try:
            with self._quotas.admit(tenant) as account:
                deadline = None if timeout_seconds is None else arrival + timeout_seconds
                origin = RequestOrigin(tenant.name, api, arrival, deadline, account)
                admitted = await self._admit(request, origin)
                try:
                    yield admitted.output
                finally:
                    self._end(admitted, is_late())
        except StagemeshError as error:
            if admitted is None:
                self._metrics.requests_rejected.labels(api, error.code).inc()
            raise

    async def _admit(self, request: GenerationRequest, origin: RequestOrigin) -> _Admitted:
        """Validates, tokenizes, checks lengths and enqueues: each once, in this order."""
        model = await self.model()
        check_request(request, model.name, model.config.vocab_size, self.max_prompts)
        has_eos = bool(model.config.eos_token_ids)
        grammar = await compile_grammar(request.structured_output, has_eos=has_eos)
        longest = self.max_model_len(model)
        prompts = tuple([await token_ids(prompt, model, longest - 1) for prompt in request.prompts])
        tokenized = TokenizedRequest(
            request, prompts, _check_lengths(request, prompts, longest), grammar
        )
        output, choices = make_choices(tokenized, model, origin, self._sequence_ids)
        self._enqueue(choices, needs_steps=tokenized.needs_steps)
        num_tokens = [len(prompt) for prompt in prompts]
        origin.account.charge(sum(num_tokens))
        key = (origin.tenant, request.request_id)
        admitted = _Admitted(key, output, tuple(choice.sequence_id for choice in choices))
        self._admitted.setdefault(key, []).append(admitted)
        log = _log.bind(request_id=request.request_id, tenant=origin.tenant)
        log.info("request_admitted", num_prompt_tokens=num_tokens)
        return admitted

    def _enqueue(self, choices: Sequence[ChoiceStream], *, needs_steps: bool) -> None:
        """Enqueues all choices, or finishes them if they need no step."""
        requests = [choice.request for choice in choices]
        self._router.check_accepts(requests if needs_steps else [])
        self._outputs.add(choices)
        self._metrics.prompt_tokens.inc(sum(len(each.prompt_ids) for each in requests))
        if needs_steps:
            self._router.enqueue(requests)
            return
        for request in requests:
            self._outputs.finish(request.sequence_id, self._router.clock())

    def _end(self, admitted: _Admitted, is_late: bool) -> None:
        """Cancels the unfinished choices."""
        others = [other for other in self._admitted[admitted.key] if other is not admitted]
        if others:
            self._admitted[admitted.key] = others
        else:
            del self._admitted[admitted.key]
        error = DeadlineExceededError if is_late else RequestCancelledError
        num_unfinished = self._cancel(admitted, error.code)
        tenant, request_id = admitted.key
        log = _log.bind(request_id=request_id, tenant=tenant)
        log.info("request_ended", num_unfinished=num_unfinished)

    def cancel(self, request_id: str, tenant: Tenant = ANONYMOUS) -> int:
        """Ends a tenant's requests with that id; returns their number.

        Clients choose ids, so several requests may have the same. They get `RequestCancelledError`.
        """
        admitted = self._admitted.get((tenant.name, request_id), ())
        for request in admitted:
            request.output.fail(RequestCancelledError())
            self._cancel(request, RequestCancelledError.code)
        return len(admitted)

    def _cancel(self, admitted: _Admitted, code: str) -> int:
        """Drops the unfinished choices from outputs and engines; returns their number."""
        self._router.cancel(admitted.sequence_ids)
        return self._outputs.cancel(admitted.sequence_ids, code)

    def max_model_len(self, model: ServedModel) -> int:
        """Tokens of the longest prompt and answer together; the replica's once it has served."""
        limits = self._router.limits
        most = self._max_model_len or model.config.max_position_embeddings
        return limits.max_model_len if limits is not None else most

    async def model(self) -> ServedModel:
        """The served model, once it is loaded; raises `QueueFullError` if too many wait for it."""
        if not self._loading.done() and self._num_early >= self.max_prompts:
            raise QueueFullError(num_waiting=self._num_early, limit=self.max_prompts)
        self._num_early += 1
        try:
            return await asyncio.shield(self._loading)
        finally:
            self._num_early -= 1


def _check_lengths(
    request: GenerationRequest, prompts: Sequence[Sequence[int]], longest: int
) -> tuple[int, ...]:
    """The most tokens that each prompt may generate; `longest` bounds prompt and answer together.

    Raises `EmptyPromptError`, `PromptTooLongError` and `InvalidRequestError`.
    """
    for index, prompt in enumerate(prompts):
        if not prompt:
            raise EmptyPromptError(index=index)
        if len(prompt) >= longest:
            raise PromptTooLongError(num_tokens=len(prompt), max_tokens=longest - 1)
    rooms = [longest - len(prompt) for prompt in prompts]
    asked = request.max_tokens
    max_tokens = tuple(room if asked is None else min(asked, room) for room in rooms)
    sampling = request.sampling
    check_num_logprobs(sampling.num_logprobs, sum(max_tokens) * request.num_choices)
    check_num_prompt_logprobs(sampling.num_prompt_logprobs, sum(map(len, prompts)))
    check_min_tokens(request.min_tokens, min(max_tokens))
    return max_tokens
