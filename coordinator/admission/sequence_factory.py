"""Owns what becomes of a request's prompts: a sequence and a generation for each choice of each.

It puts nothing in line; `admission.py` does.
"""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace

from coordinator.admission.slot_sampling import slot_sampling
from coordinator.output.choice_stream import Generation
from coordinator.output.detokenizer import Detokenizer
from coordinator.output.output_stream import OutputStream
from coordinator.output.output_text import OutputText
from coordinator.output.stop_strings import StopStrings
from coordinator.security.rate_limits import Account
from coordinator.tokenization.model_info import ServedModel
from runtime.errors import InvalidRequestError
from runtime.protocol.inference_types import GenerationRequest
from runtime.protocol.step import SlotSampling
from scheduler import SequenceRequest


@dataclass(frozen=True, slots=True)
class TokenizedRequest:
    """A request whose prompts are token ids; `max_tokens` is per prompt, `grammar` compiled."""

    request: GenerationRequest
    prompts: tuple[tuple[int, ...], ...]
    max_tokens: tuple[int, ...]
    grammar: str


@dataclass(frozen=True, slots=True)
class RequestOrigin:
    """Whose request it is, through which API (`grpc` or `http`), and what pays for its tokens.

    `arrival` and `deadline` are in the clock's seconds.
    """

    tenant: str
    api: str
    arrival: float
    deadline: float | None
    account: Account


def make_generations(
    tokenized: TokenizedRequest,
    model: ServedModel,
    asker: RequestOrigin,
    sequence_ids: Iterator[int],
) -> tuple[OutputStream, list[Generation]]:
    """All choices of all prompts, in the order in which `OutputStream` counts them.

    Raises `InvalidRequestError` where no token could be drawn.
    """
    request, num_choices = tokenized.request, tokenized.request.num_choices
    stop_ids = _stop_ids(request, model)
    seeds = tuple(_seed(request) for _ in tokenized.prompts)
    prompt_lengths = tuple(map(len, tokenized.prompts))
    output = OutputStream(seeds, num_choices, prompt_lengths, request.request_id)
    generations = []
    for number in range(output.num_answers):
        index, choice = divmod(number, num_choices)
        prompt = tokenized.prompts[index]
        sampling = replace(
            slot_sampling(request, seeds[index], choice, stop_ids, len(prompt)),
            grammar=tokenized.grammar,
        )
        sequence = _make_sequence(next(sequence_ids), tokenized, index, sampling, stop_ids, asker)
        stops = StopStrings(request.stop, request.include_stop)
        detokenizer = Detokenizer(model.tokenizer, prompt)
        text = OutputText(detokenizer, stops, request.min_tokens)
        generations.append(Generation(sequence, number, text, output, asker.account, asker.api))
    return output, generations


def _seed(request: GenerationRequest) -> int:
    """The client's seed for all its prompts, else a new one for each."""
    return secrets.randbits(63) if request.sampling.seed is None else request.sampling.seed


def _make_sequence(
    sequence_id: int,
    tokenized: TokenizedRequest,
    index: int,
    sampling: SlotSampling,
    stop_ids: frozenset[int],
    asker: RequestOrigin,
) -> SequenceRequest:
    """A choice of the prompt at `index`, with the client's wishes about its turn."""
    wishes = tokenized.request.scheduling
    return SequenceRequest(
        sequence_id=sequence_id,
        prompt_ids=tokenized.prompts[index],
        sampling=sampling,
        max_tokens=tokenized.max_tokens[index],
        stop_ids=stop_ids,
        arrival=asker.arrival,
        cache_salt=wishes.cache_salt,
        reads_prefix_cache=sampling.num_prompt_logprobs is None,
        priority=wishes.priority,
        tenant=asker.tenant,
        ttft_target_seconds=wishes.ttft_target_seconds,
        tpot_target_seconds=wishes.tpot_target_seconds,
        deadline=asker.deadline,
    )


def _stop_ids(request: GenerationRequest, model: ServedModel) -> frozenset[int]:
    """Raises `InvalidRequestError` if `min_tokens` forbids every token that there is."""
    stop_ids = frozenset(request.stop_token_ids)
    if not request.ignore_eos:
        stop_ids |= frozenset(model.config.eos_token_ids)
    if request.min_tokens and len(stop_ids) >= model.config.vocab_size:
        raise InvalidRequestError(field="min_tokens", problem="every token is a stop token")
    return stop_ids
