"""The limits of one epoch, the prior costs of its stages, and the check that a request can fit."""

from dataclasses import dataclass

from runtime.errors import NeverFitsError, PromptTooLongError
from scheduler.cost_model.stage_costs import StageCostModel


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """The limits of one epoch; every number is at least 1.

    `max_sequences` counts slots, `max_step_tokens` the rows of one microbatch, `max_model_len`
    prompt and generated tokens of one sequence together, `max_waiting` sequences without a slot.
    With `prefix_caching`, sequences share the KV blocks of equal prefixes. `guessed_costs` are the
    stages' prior costs by device, for policies that predict before the first measurement; empty
    if the devices are unknown.
    """

    num_blocks: int
    block_size: int
    max_sequences: int
    max_step_tokens: int
    max_model_len: int
    num_steps_in_flight: int
    max_waiting: int
    prefix_caching: bool = True
    guessed_costs: tuple[StageCostModel, ...] = ()

    def blocks_for(self, num_positions: int) -> int:
        """Number of KV blocks for `num_positions` positions."""
        return -(-num_positions // self.block_size)

    def final_len(self, num_prompt_tokens: int, max_tokens: int) -> int:
        """Length of a sequence that runs to its token limit, prompt included."""
        return min(num_prompt_tokens + max_tokens, self.max_model_len)

    def max_new_tokens(self, num_prompt_tokens: int) -> int:
        """Maximum number of generated tokens after such a prompt; 0 or less if it never fits.

        The last token needs no KV position, because nothing follows it.
        """
        return min(self.max_model_len, self.num_blocks * self.block_size + 1) - num_prompt_tokens

    def check_fits(self, num_prompt_tokens: int, max_tokens: int) -> None:
        """Raises PromptTooLongError or NeverFitsError if an empty cache could not finish it."""
        if num_prompt_tokens >= self.max_model_len:
            raise PromptTooLongError(
                num_tokens=num_prompt_tokens, max_tokens=self.max_model_len - 1
            )
        num_blocks_needed = self.blocks_for(self.final_len(num_prompt_tokens, max_tokens) - 1)
        if num_blocks_needed > self.num_blocks:
            raise NeverFitsError(num_blocks_needed=num_blocks_needed, num_blocks=self.num_blocks)
