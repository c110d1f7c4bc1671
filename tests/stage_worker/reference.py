"""What a pipeline sampled, held against Transformers, with the bound of all tests of equality."""

from collections.abc import Iterator, Sequence

import torch

from runtime.protocol.step import SampledToken, SlotSampling
from tests.stage_worker.local_pipeline import LocalPipeline, Request
from tests.tiny_models import TinyModel

TOLERANCE = 1e-4
WHOLE = 10_000
EVERYTHING = SlotSampling(num_logprobs=WHOLE)


def make_prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(
        (seed * 7919 + index * index * 31 + 13 * index + 3) % 320 for index in range(length)
    )


def assert_matches(model: TinyModel, request: Request, sampled: Sequence[SampledToken]) -> None:
    """Full-vocabulary log-probabilities within tolerance and the same greedy tokens.

    A token is excused only where the oracle's two likeliest are closer than the tolerance.
    """
    assert len(sampled) == request.num_tokens
    generated = tuple(token.token_id for token in sampled)
    expected_TV = model.logprobs((*request.prompt_ids, *generated[:-1]))
    expected_TV = expected_TV[len(request.prompt_ids) - 1 :]
    bound = TOLERANCE * expected_TV.abs().max()
    for token, expected_V in zip(sampled, expected_TV, strict=True):
        actual_V = torch.empty_like(expected_V)
        actual_V[list(token.top_ids)] = torch.tensor(token.top_logprobs)
        assert (actual_V - expected_V).abs().max() <= bound
        assert abs(token.logprob - float(actual_V[token.token_id])) <= 1e-5
        best, second = expected_V.topk(2).values
        assert token.token_id == int(expected_V.argmax()) or best - second <= bound


def assert_all_match(
    model: TinyModel,
    requests: Sequence[Request],
    pipeline: LocalPipeline,
    chunk_sizes: Iterator[int],
) -> None:
    for request, sampled in zip(requests, pipeline.generate(requests, chunk_sizes), strict=True):
        assert_matches(model, request, sampled)
