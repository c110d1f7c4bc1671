"""The policy `vllm`: every microbatch takes all that is runnable, decodes first, up to a budget.

It is the rule of vLLM's v1 scheduler with chunked prefill and pipeline parallelism, here to be
compared with: whoever is ready goes together, so cohorts stay as uneven as they come.
"""

from collections.abc import Sequence

from scheduler.policies.open_loop import OpenLoopPolicy
from scheduler.policy import MicrobatchView, SchedulerView, SequenceView


class VllmPolicy(OpenLoopPolicy):
    """All ready decodes, then prompt chunks, within `max_step_tokens` rows."""

    name = "vllm"

    def __init__(self, max_step_tokens: int) -> None:
        super().__init__()
        self._max_step_tokens = max_step_tokens

    def choose_decodes(self, view: SchedulerView) -> Sequence[int]:
        """All of them, within the budget."""
        return [sequence.sequence_id for sequence in view.ready[: self._max_step_tokens]]

    def chunk_tokens(
        self, view: SchedulerView, microbatch: MicrobatchView, sequence: SequenceView
    ) -> int:
        """Whatever the budget has left."""
        return min(sequence.num_unsent, self._max_step_tokens - microbatch.num_tokens)
