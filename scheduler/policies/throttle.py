"""The policy `throttle`: prompts by waiting tokens and free memory, decodes in equal shares.

It is gLLM's token throttling (arXiv 2504.14775): a microbatch's prompt tokens follow the waiting
tokens and the free share of the KV cache, and its decodes are an even share of all, in rotation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from scheduler.policies.fixed import OpenLoopPolicy
from scheduler.policies.interface import MicrobatchView, SchedulerView, SequenceView, even_share


@dataclass(frozen=True, slots=True)
class ThrottleOptions:
    """The paper's constants: steps to drain waiting tokens, bounds, share of reserved blocks."""

    num_drain_steps: int = 8
    min_prefill_tokens: int = 32
    max_prefill_tokens: int = 8192
    max_decodes: int = 512
    reserved_share: float = 0.05


class ThrottlePolicy(OpenLoopPolicy):
    """min(max(waiting/T, least), most * (free - reserve)/(1 - reserve)) prompt tokens a step."""

    name = "throttle"

    def __init__(self, options: ThrottleOptions) -> None:
        super().__init__()
        self._options = options
        self._prefill_tokens = 0

    def choose_decodes(self, view: SchedulerView) -> Sequence[int]:
        """An even share of the longest waiting decodes; also sets this step's prompt tokens."""
        self._prefill_tokens = self._throttled(view)
        # If the rows of a step are the limit, decodes leave some for prompts.
        max_rows = view.limits.max_step_tokens
        room = max(1, max_rows - min(self._prefill_tokens, self._options.min_prefill_tokens))
        share = even_share(view, self.num_steps_in_flight(view))
        num_decodes = min(share, room, self._options.max_decodes)
        return [sequence.sequence_id for sequence in view.ready[:num_decodes]]

    def chunk_tokens(
        self, view: SchedulerView, microbatch: MicrobatchView, sequence: SequenceView
    ) -> int:
        """The rest of this step's prompt tokens."""
        work = microbatch.work
        return min(sequence.num_unsent, self._prefill_tokens - (work.num_tokens - work.num_decodes))

    def _throttled(self, view: SchedulerView) -> int:
        options = self._options
        most = options.max_prefill_tokens
        num_waiting = 0
        for sequence in chain(view.prefilling, view.waiting):
            num_waiting += sequence.num_unsent
            if num_waiting >= most * options.num_drain_steps:
                break
        if num_waiting == 0:
            return 0
        wanted = min(most, max(num_waiting // options.num_drain_steps, options.min_prefill_tokens))
        if view.num_decoding == 0:
            return wanted  # no decode would free blocks
        free = view.num_blocks_free / view.limits.num_blocks
        reserve = options.reserved_share
        allowed = int(most * (free - reserve) / (1.0 - reserve))
        # Started prompts hold their blocks already, so they always make some progress.
        least = options.min_prefill_tokens if view.prefilling else 0
        return max(min(wanted, allowed), least)
