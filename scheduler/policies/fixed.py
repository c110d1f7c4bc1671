"""The policy `fixed`: a constant token budget per microbatch, whatever the load."""

from collections.abc import Sequence

from scheduler.policies.interface import MicrobatchView, SchedulerView, SequenceView, even_share
from scheduler.policies.open_loop import OpenLoopPolicy

PREFILL_SHARE = 8
"""One in this many rows is reserved for prompts while any wait, so decodes never starve them."""


class FixedPolicy(OpenLoopPolicy):
    """Decodes spread evenly over the steps in flight; prompts fill up to `max_step_tokens` rows."""

    name = "fixed"

    def __init__(self, max_step_tokens: int) -> None:
        super().__init__()
        self._max_step_tokens = max_step_tokens

    def choose_decodes(self, view: SchedulerView) -> Sequence[int]:
        """An even share of the longest waiting decodes, within the rows left for decodes."""
        has_prompts = view.has_prompts
        reserved = -(-self._max_step_tokens // PREFILL_SHARE) if has_prompts else 0
        room = max(1, self._max_step_tokens - reserved)
        share = even_share(view, self.num_steps_in_flight(view))
        return [sequence.sequence_id for sequence in view.ready[: min(share, room)]]

    def chunk_tokens(
        self, view: SchedulerView, microbatch: MicrobatchView, sequence: SequenceView
    ) -> int:
        """The rest of the budget."""
        return min(sequence.num_unsent, self._max_step_tokens - microbatch.num_tokens)
