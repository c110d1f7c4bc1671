"""Owns what a stage's result may say; any breach ends the epoch, before anybody believes it."""

import math
from collections.abc import Sequence

from protos import stage_pb2
from runtime.errors import FrameError, StepGapError
from runtime.protocol.step import SampledToken, ScoredToken


def check_part(
    message: stage_pb2.StepResult, parts: Sequence[stage_pb2.StepResult], max_step_tokens: int
) -> None:
    """A step has no more scored tokens than tokens, and its parts come together."""
    if parts and message.step != parts[0].step:
        raise StepGapError(expected=parts[0].step, actual=message.step)
    num_scored = sum(len(part.scored) for part in (*parts, message))
    if not message.scored or num_scored > max_step_tokens:
        raise FrameError(
            what=f"scored tokens of step {message.step}",
            expected=f"1 to {max_step_tokens}",
            actual=num_scored,
        )


def check_tokens(tokens: Sequence[SampledToken | ScoredToken], vocab_size: int) -> None:
    """Tokens are the model's, and log-probabilities numbers; the scheduler checks the rest."""
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
