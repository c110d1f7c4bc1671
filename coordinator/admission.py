"""Owns the way from a request to sequences: validated, tokenized, given seeds, put in line.

Every door comes through here, so that they mean the same thing. A request that cannot be served is
refused with one typed error before it costs anybody else anything.
"""

import asyncio
import itertools
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

from coordinator.answer_text import AnswerText
from coordinator.api_keys import ANONYMOUS, Tenant
from coordinator.detokenizer import Detokenizer
from coordinator.dispatcher import Dispatcher
from coordinator.generation import Generation
from coordinator.output import OutputStream
from coordinator.quotas import Account, Quotas
from coordinator.requests import GenerationRequest, SchedulingOptions
from coordinator.served_model import ServedModel
from coordinator.slot_sampling import slot_sampling
from coordinator.stop_strings import StopStrings
from coordinator.structured_output import compile_grammar
from coordinator.texts import token_ids
from coordinator.validation import (
    check_min_tokens,
    check_num_logprobs,
    check_num_prompt_logprobs,
    check_request,
)
from runtime.errors import (
    DeadlineExceededError,
    EmptyPromptError,
    InvalidRequestError,
    PromptTooLongError,
    QueueFullError,
    RequestCancelledError,
    StagemeshError,
)
from runtime.logs import get_logger
from runtime.metrics import CoordinatorMetrics
from scheduler import SequenceRequest

_log = get_logger()


@dataclass(frozen=True, slots=True)
class _Tokenized:
    """A request whose prompts are token ids; `max_tokens` is per prompt, `grammar` compiled."""

    request: GenerationRequest
    prompts: tuple[tuple[int, ...], ...]
    max_tokens: tuple[int, ...]
    grammar: str


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
        dispatcher: Dispatcher,
        max_model_len: int | None,
        max_waiting: int,
        metrics: CoordinatorMetrics,
    ) -> None:
        """`model` may still be loading: requests wait for it, at most `max_waiting` of them."""
        self._loading = model
        self._dispatcher = dispatcher
        self._max_model_len = max_model_len
        self.max_prompts = max_waiting
        self._num_early = 0
        self._metrics = metrics
        self._quotas = Quotas(dispatcher.clock)
        # Requests between their admission and their end.
        self._admitted: dict[tuple[str, str], list[_Admitted]] = {}
        self._sequence_ids = itertools.count(1)

    @asynccontextmanager
    async def generate(
        self,
        request: GenerationRequest,
        tenant: Tenant = ANONYMOUS,
        is_late: Callable[[], bool] = lambda: False,
    ) -> AsyncIterator[OutputStream]:
        """The output of an admitted request; what is unfinished at the end is cancelled.

        `is_late` says then whether the request's deadline has passed.

        Raises what `check_request` says, `EmptyPromptError`, `PromptTooLongError`,
        `QueueFullError`, what `Quotas.admit` does, and why nothing is served if that is so.
        """
        arrival = self._dispatcher.clock()
        admitted: _Admitted | None = None
        try:
            with self._quotas.admit(tenant) as account:
                admitted = await self._admit(request, tenant, account, arrival)
                try:
                    yield admitted.output
                finally:
                    self._end(admitted, is_late())
        except StagemeshError as error:
            if admitted is None:
                self._metrics.requests_rejected.labels(request.door, error.code).inc()
            raise

    async def _admit(
        self, request: GenerationRequest, tenant: Tenant, account: Account, arrival: float
    ) -> _Admitted:
        """Puts the request in line."""
        model = await self.model()
        check_request(request, model.name, model.config.vocab_size, self.max_prompts)
        has_eos = bool(model.config.eos_token_ids)
        grammar = await compile_grammar(request.structured_output, has_eos=has_eos)
        tokenized = await self._tokenize(request, model, grammar)
        output, generations = self._generations(tokenized, model, arrival, account, tenant.name)
        self._dispatcher.submit(generations)
        num_tokens = [len(prompt) for prompt in tokenized.prompts]
        account.charge(sum(num_tokens))
        key = (tenant.name, request.request_id)
        admitted = _Admitted(key, output, tuple(generations))
        self._admitted.setdefault(key, []).append(admitted)
        log = _log.bind(request_id=request.request_id, tenant=tenant.name)
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
        num_unfinished = self._dispatcher.cancel(admitted.generations, error.code)
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
            self._dispatcher.cancel(request.generations)
        return len(admitted)

    def max_model_len(self, model: ServedModel) -> int:
        """The longest prompt and answer together: the replica's, once there was one."""
        limits = self._dispatcher.limits
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
    ) -> _Tokenized:
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
        return _Tokenized(request, prompts, max_tokens, grammar)

    def _generations(
        self,
        tokenized: _Tokenized,
        model: ServedModel,
        arrival: float,
        account: Account,
        tenant: str,
    ) -> tuple[OutputStream, list[Generation]]:
        """All choices of all prompts, in the order in which `OutputStream` counts them."""
        request, num_choices = tokenized.request, tokenized.request.num_choices
        stop_ids = _stop_ids(request, model)
        make_sequence = _sequence_maker(request.scheduling, arrival, tenant)
        seeds = tuple(self._seed(request) for _ in tokenized.prompts)
        output = OutputStream(seeds, num_choices, tuple(map(len, tokenized.prompts)))
        generations = []
        for number in range(output.num_answers):
            index, choice = divmod(number, num_choices)
            prompt = tokenized.prompts[index]
            sampling = replace(
                slot_sampling(request, seeds[index], choice, stop_ids, len(prompt)),
                grammar=tokenized.grammar,
            )
            sequence = make_sequence(
                sequence_id=next(self._sequence_ids),
                prompt_ids=prompt,
                sampling=sampling,
                max_tokens=tokenized.max_tokens[index],
                stop_ids=stop_ids,
                reads_prefix_cache=sampling.num_prompt_logprobs is None,
            )
            stops = StopStrings(request.stop, request.include_stop)
            detokenizer = Detokenizer(model.tokenizer, prompt)
            text = AnswerText(detokenizer, stops, request.min_tokens)
            generations.append(Generation(sequence, number, text, output, account, request.door))
        return output, generations

    def _seed(self, request: GenerationRequest) -> int:
        """The client's seed for all its prompts, else a new one for each."""
        return secrets.randbits(63) if request.sampling.seed is None else request.sampling.seed


def _sequence_maker(
    scheduling: SchedulingOptions, arrival: float, tenant: str
) -> Callable[..., SequenceRequest]:
    """Makes sequences that all have the same wishes about their turn."""
    timeout = scheduling.timeout_seconds
    return partial(
        SequenceRequest,
        arrival=arrival,
        cache_salt=scheduling.cache_salt,
        priority=scheduling.priority,
        tenant=tenant,
        ttft_target_seconds=scheduling.ttft_target_seconds,
        tpot_target_seconds=scheduling.tpot_target_seconds,
        deadline=None if timeout is None else arrival + timeout,
    )


def _stop_ids(request: GenerationRequest, model: ServedModel) -> frozenset[int]:
    """Raises `InvalidRequestError` if `min_tokens` forbids every token that there is."""
    stop_ids = frozenset(request.stop_token_ids)
    if not request.ignore_eos:
        stop_ids |= frozenset(model.config.eos_token_ids)
    if request.min_tokens and len(stop_ids) >= model.config.vocab_size:
        raise InvalidRequestError(field="min_tokens", problem="every token is a stop token")
    return stop_ids
