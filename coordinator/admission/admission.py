"""Owns the way of a request into the line: counted, validated, tokenized; and out of it again.

Every API comes through here, so that they mean the same thing. A request that cannot be served is
refused with one typed error before it costs anybody else anything. What becomes of its prompts is
in `choices.py`.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from coordinator.admission.sequence_factory import RequestOrigin, TokenizedRequest, make_generations
from coordinator.engine.request_router import RequestRouter
from coordinator.output.choice_stream import Generation
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
    """What it takes to end a request from outside its call."""

    # The tenant's name and the id that the client gave.
    key: tuple[str, str]
    output: OutputStream
    generations: tuple[Generation, ...]


class Admission:
    """Lets requests in, one call of `generate` each."""

    def __init__(
        self,
        model: asyncio.Future[ServedModel],
        router: RequestRouter,
        max_model_len: int | None,
        max_waiting: int,
        metrics: CoordinatorMetrics,
    ) -> None:
        """`model` may still be loading: requests wait for it, at most `max_waiting` of them."""
        self._loading = model
        self._router = router
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
        tenant: Tenant = ANONYMOUS,
        api: str = "grpc",
        timeout_seconds: float | None = None,
        is_late: Callable[[], bool] = lambda: False,
    ) -> AsyncIterator[OutputStream]:
        """The output of an admitted request; what is unfinished at the end is cancelled.

        `api`, `grpc` or `http`, labels the metrics. `timeout_seconds` is how long the client waits
        for the whole answer, None for ever. `is_late` states at the end whether the request's
        deadline has passed.

        Raises what `check_request` says, `EmptyPromptError`, `PromptTooLongError`,
        `QueueFullError`, what `Quotas.admit` does, and why nothing is served if that is so.
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
        """Puts the request in line."""
        model = await self.model()
        check_request(request, model.name, model.config.vocab_size, self.max_prompts)
        has_eos = bool(model.config.eos_token_ids)
        grammar = await compile_grammar(request.structured_output, has_eos=has_eos)
        tokenized = await self._tokenize(request, model, grammar)
        output, generations = make_generations(tokenized, model, origin, self._sequence_ids)
        self._router.submit(generations)
        num_tokens = [len(prompt) for prompt in tokenized.prompts]
        origin.account.charge(sum(num_tokens))
        key = (origin.tenant, request.request_id)
        admitted = _Admitted(key, output, tuple(generations))
        self._admitted.setdefault(key, []).append(admitted)
        log = _log.bind(request_id=request.request_id, tenant=origin.tenant)
        log.info("request_admitted", num_prompt_tokens=num_tokens)
        return admitted

    def _end(self, admitted: _Admitted, is_late: bool) -> None:
        """Cancels what is unfinished."""
        others = [other for other in self._admitted[admitted.key] if other is not admitted]
        if others:
            self._admitted[admitted.key] = others
        else:
            del self._admitted[admitted.key]
        error = DeadlineExceededError if is_late else RequestCancelledError
        num_unfinished = self._router.cancel(admitted.generations, error.code)
        tenant, request_id = admitted.key
        log = _log.bind(request_id=request_id, tenant=tenant)
        log.info("request_ended", num_unfinished=num_unfinished)

    def cancel(self, request_id: str, tenant: Tenant = ANONYMOUS) -> int:
        """Ends a tenant's requests of that id, with `RequestCancelledError`; how many there were.

        Ids are the clients': several requests may have the same.
        """
        admitted = self._admitted.get((tenant.name, request_id), ())
        for request in admitted:
            request.output.fail(RequestCancelledError())
            self._router.cancel(request.generations)
        return len(admitted)

    def max_model_len(self, model: ServedModel) -> int:
        """The longest prompt and answer together: the replica's, once there was one."""
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

    async def _tokenize(
        self, request: GenerationRequest, model: ServedModel, grammar: str
    ) -> TokenizedRequest:
        longest = self.max_model_len(model)
        prompts = tuple([await token_ids(prompt, model, longest - 1) for prompt in request.prompts])
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
        return TokenizedRequest(request, prompts, max_tokens, grammar)
