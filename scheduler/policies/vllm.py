"""The policy `vllm`: every microbatch takes all that is runnable, decodes first, up to a budget.

It is the rule of vLLM's v1 scheduler with chunked prefill and pipeline parallelism, here to be
compared with: whoever is ready goes together, so cohorts stay as uneven as they come.
"""

from collections.abc import Sequence

from scheduler.policies.fixed import FixedPolicy
from scheduler.policies.interface import SchedulerView


class VllmPolicy(FixedPolicy):
    """All ready decodes, then prompt chunks, within the constant budget of `fixed`."""

    name = "vllm"

    def choose_decodes(self, view: SchedulerView) -> Sequence[int]:
        """All of them, within the budget."""
        return [sequence.sequence_id for sequence in view.ready[: self._max_step_tokens]]
