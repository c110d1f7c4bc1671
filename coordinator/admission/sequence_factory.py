"""Makes the sequence and the output of each choice of a tokenized request; enqueues nothing."""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace

from coordinator.output.choice_stream import ChoiceStream, OutputText
from coordinator.output.detokenizer import Detokenizer
from coordinator.output.output_stream import OutputStream
from coordinator.output.stop_strings import StopStrings
from coordinator.security.rate_limits import Account
from coordinator.tokenization.model_info import ServedModel
from runtime.errors import InvalidRequestError
from runtime.protocol.inference_types import GenerationRequest
from runtime.protocol.step import SlotSampling
from scheduler import SequenceRequest


@dataclass(frozen=True, slots=True)
class TokenizedRequest:
    """A request whose prompts are token ids; `max_tokens` is per prompt, `grammar` is compiled."""

    request: GenerationRequest
    prompts: tuple[tuple[int, ...], ...]
    max_tokens: tuple[int, ...]
    grammar: str

    @property
    def needs_steps(self) -> bool:
        """Whether anything is to be computed: tokens, or the prompt's log-probabilities."""
        scores_prompt = self.request.sampling.num_prompt_logprobs is not None
        return scores_prompt or any(self.max_tokens)


@dataclass(frozen=True, slots=True)
class RequestOrigin:
    """The tenant, the API (`grpc` or `http`), and the account that pays for tokens.

    `arrival` and `deadline` are in the clock's seconds.
    """

    tenant: str
    api: str
    arrival: float
    deadline: float | None
    account: Account


def make_choices(
    tokenized: TokenizedRequest,
    model: ServedModel,
    origin: RequestOrigin,
    sequence_ids: Iterator[int],
) -> tuple[OutputStream, list[ChoiceStream]]:
    """All choices of all prompts, in the order in which `OutputStream` counts them.

    Raises `InvalidRequestError` if no token can be drawn.
    """
    request, num_choices = tokenized.request, tokenized.request.num_choices
    stop_ids = _stop_ids(request, model)
    seeds = tuple(_seed(request) for _ in tokenized.prompts)
    prompt_lengths = tuple(map(len, tokenized.prompts))
    output = OutputStream(seeds, num_choices, prompt_lengths, request.request_id)
    choices: list[ChoiceStream] = []
    for number in range(output.num_answers):
        index, choice = divmod(number, num_choices)
        prompt = tokenized.prompts[index]
        sampling = replace(
            _slot_sampling(request, seeds[index], choice, stop_ids, len(prompt)),
            grammar=tokenized.grammar,
        )
        sequence = _make_sequence(next(sequence_ids), tokenized, index, sampling, stop_ids, origin)
        stops = StopStrings(request.stop, request.include_stop)
        detokenizer = Detokenizer(model.tokenizer, prompt)
        text = OutputText(detokenizer, stops, request.min_tokens)
        choices.append(ChoiceStream(sequence, number, text, output, origin.account, origin.api))
    return output, choices


def _seed(request: GenerationRequest) -> int:
    """The client's seed for all its prompts, else a new one for each."""
    return secrets.randbits(63) if request.sampling.seed is None else request.sampling.seed


def _make_sequence(
    sequence_id: int,
    tokenized: TokenizedRequest,
    index: int,
    sampling: SlotSampling,
    stop_ids: frozenset[int],
    origin: RequestOrigin,
) -> SequenceRequest:
    """The sequence of a choice of the prompt at `index`."""
    scheduling = tokenized.request.scheduling
    return SequenceRequest(
        sequence_id=sequence_id,
        prompt_ids=tokenized.prompts[index],
        sampling=sampling,
        max_tokens=max(1, tokenized.max_tokens[index]),
        stop_ids=stop_ids,
        arrival=origin.arrival,
        cache_salt=scheduling.cache_salt,
        reads_prefix_cache=sampling.num_prompt_logprobs is None,
        is_score_only=tokenized.max_tokens[index] == 0,
        priority=scheduling.priority,
        tenant=origin.tenant,
        ttft_target_seconds=scheduling.ttft_target_seconds,
        tpot_target_seconds=scheduling.tpot_target_seconds,
        deadline=origin.deadline,
    )


def _stop_ids(request: GenerationRequest, model: ServedModel) -> frozenset[int]:
    """Raises `InvalidRequestError` if `min_tokens` suppresses the whole vocabulary."""
    stop_ids = frozenset(request.stop_token_ids)
    if not request.ignore_eos:
        stop_ids |= frozenset(model.config.eos_token_ids)
    if request.min_tokens and len(stop_ids) >= model.config.vocab_size:
        raise InvalidRequestError(field="min_tokens", problem="every token is a stop token")
    return stop_ids


def _slot_sampling(
    request: GenerationRequest,
    seed: int,
    choice: int,
    stop_ids: frozenset[int],
    num_prompt_tokens: int,
) -> SlotSampling:
    """The sampling parameters of one choice's slot.

    They refer to positions, so that a sequence that is computed again draws the same tokens.
    """
    sampling, min_tokens = request.sampling, request.min_tokens
    return SlotSampling(
        temperature=sampling.temperature,
        # The wire has 32 bits; a vocabulary is smaller, so the largest value means all of it.
        top_k=min(sampling.top_k, 2**32 - 1),
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        seed=seed,
        choice=choice,
        num_logprobs=sampling.num_logprobs,
        suppressed_ids=tuple(sorted(stop_ids)) if min_tokens else (),
        suppressed_until=num_prompt_tokens + min_tokens if min_tokens else 0,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        num_prompt_tokens=num_prompt_tokens,
        logit_bias=sampling.logit_bias,
        num_prompt_logprobs=sampling.num_prompt_logprobs,
    )
