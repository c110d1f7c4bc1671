"""The policy `vllm`: every microbatch takes all runnable work, decodes first, up to a budget.

It is the rule of vLLM's v1 scheduler with chunked prefill and pipeline parallelism, as a baseline:
all ready decodes run together, so microbatches remain as uneven as they arrive.
"""

from collections.abc import Sequence

from scheduler.policies.fixed import FixedPolicy
from scheduler.policies.interface import SchedulerView


class VllmPolicy(FixedPolicy):
    """All ready decodes, then prompt chunks, within the constant budget of `fixed`."""

    name = "vllm"

    def choose_decodes(self, view: SchedulerView) -> Sequence[int]:
        """All ready decodes, within the budget."""
        return [sequence.sequence_id for sequence in view.ready[: self._max_step_tokens]]
