"""Reads the results of one rank: assembles their parts, validates them and reports failures.

A breach of the protocol ends the epoch before anything in the result is used.
"""

import math
from collections.abc import Callable, Sequence

import grpc.aio

from coordinator.stage_client.failures import RankFailureSource, raise_after_grace
from coordinator.stage_client.stage_client import ResultsCall
from protos import stage_pb2
from runtime.errors import FrameError, StagemeshError, StepGapError
from runtime.protocol.result_codec import result_from_proto
from runtime.protocol.step import SampledToken, ScoredToken, StepResult


async def read_results(
    source: RankFailureSource,
    call: ResultsCall,
    max_step_tokens: int,
    deliver: Callable[[StepResult], None],
) -> None:
    """Never returns: delivers a rank 0's results until its stream ends.

    `deliver` raises a `StagemeshError` for a result that breaks the protocol.
    """
    end = source.from_close("results")
    parts: list[stage_pb2.StepResult] = []
    try:
        async for message in call:
            if message.HasField("failure"):
                end = source.from_result(message.failure)
                break
            if message.continues:
                _check_part(message, parts, max_step_tokens)
                parts.append(message)
                continue
            deliver(result_from_proto(message, parts))
            parts = []
    except grpc.aio.AioRpcError as error:
        end = source.from_status(error)
    except StagemeshError as error:
        end = source.from_violation(error)
    await raise_after_grace(end)


async def read_failure(source: RankFailureSource, call: ResultsCall) -> None:
    """Never returns: waits for the failure of a rank other than 0, which sends nothing else."""
    end = source.from_close("results")
    try:
        async for message in call:
            if message.HasField("failure"):
                end = source.from_result(message.failure)
                break
    except grpc.aio.AioRpcError as error:
        end = source.from_status(error)
    await raise_after_grace(end)


def check_tokens(result: StepResult, vocab_size: int) -> None:
    """Raises `FrameError` for tokens outside the vocabulary or log-probabilities that are NaN.

    The scheduler checks everything else.
    """
    tokens: Sequence[SampledToken | ScoredToken] = (*result.sampled, *result.scored)
    for token in tokens:
        if token.token_id >= vocab_size:
            raise FrameError(
                what="token of a result", expected=f"below {vocab_size}", actual=token.token_id
            )
        if any(map(math.isnan, (token.logprob, *token.top_logprobs))):
            raise FrameError(what="log-probability", expected="a number", actual="NaN")
        if len(token.top_ids) != len(token.top_logprobs):
            raise FrameError(
                what="log-probabilities of the most likely tokens",
                expected=len(token.top_ids),
                actual=len(token.top_logprobs),
            )


def _check_part(
    message: stage_pb2.StepResult, parts: Sequence[stage_pb2.StepResult], max_step_tokens: int
) -> None:
    """Requires parts of one step, with at most as many scored tokens as a step has tokens."""
    if parts and message.step != parts[0].step:
        raise StepGapError(expected=parts[0].step, actual=message.step)
    num_scored = sum(len(part.scored) for part in (*parts, message))
    if not message.scored or num_scored > max_step_tokens:
        raise FrameError(
            what=f"scored tokens of step {message.step}",
            expected=f"1 to {max_step_tokens}",
            actual=num_scored,
        )
