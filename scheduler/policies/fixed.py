"""The policies `fixed` and `vllm`: a constant token budget per microbatch, without feedback."""

from collections.abc import Sequence

from scheduler.cost_model.feedback import SentStep, StageRecord
from scheduler.limits import SchedulerLimits
from scheduler.observability.snapshot import PolicySnapshot
from scheduler.policies.interface import MicrobatchView, SchedulerView, SequenceView, even_share


class OpenLoopPolicy:
    """Keeps the maximum number of steps in flight and ignores feedback."""

    name = ""

    def __init__(self) -> None:
        self._num_in_flight = 0

    def start_epoch(self, limits: SchedulerLimits) -> None:
        """Stores the limit for `snapshot`."""
        self._num_in_flight = limits.num_steps_in_flight

    def num_steps_in_flight(self, view: SchedulerView) -> int:
        """The maximum of the limits."""
        return view.limits.num_steps_in_flight

    def complete(self, sent: SentStep, now: float) -> None:
        """Does nothing."""

    def observe(self, record: StageRecord, sent: SentStep) -> None:
        """Does nothing."""

    def snapshot(self) -> PolicySnapshot:
        """The policy's name and limit."""
        return PolicySnapshot(policy=self.name, num_steps_in_flight=self._num_in_flight)


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


class VllmPolicy(FixedPolicy):
    """All ready decodes, then prompt chunks, within the constant budget of `fixed`.

    A baseline: the rule of vLLM's v1 scheduler with chunked prefill and pipeline parallelism. All
    ready decodes run together, so microbatches remain as uneven as they arrive.
    """

    name = "vllm"

    def choose_decodes(self, view: SchedulerView) -> Sequence[int]:
        """All ready decodes, within the budget."""
        return [sequence.sequence_id for sequence in view.ready[: self._max_step_tokens]]
