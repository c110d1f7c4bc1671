"""The policy `throttle`: prompts by what waits and by free memory, decodes in equal shares.

It is gLLM's token throttling (arXiv 2504.14775): a microbatch's prompt tokens follow the waiting
tokens and the free share of the KV cache, and its decodes are an even share of all, in rotation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from scheduler.policies.interface import MicrobatchView, SchedulerView, SequenceView, even_share
from scheduler.policies.open_loop import OpenLoopPolicy


@dataclass(frozen=True, slots=True)
class ThrottleOptions:
    """The constants of the paper: steps to drain what waits, bounds, blocks kept for decodes."""

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
        """An even share of those that waited longest; fixes the prompt tokens of this step too."""
        self._prefill_tokens = self._throttled(view)
        # Where the rows of a step are the limit, decodes must not crowd the prompts out.
        max_rows = view.limits.max_step_tokens
        room = max(1, max_rows - min(self._prefill_tokens, self._options.min_prefill_tokens))
        share = even_share(view, self.num_steps_in_flight(view))
        num_decodes = min(share, room, self._options.max_decodes)
        return [sequence.sequence_id for sequence in view.ready[:num_decodes]]

    def chunk_tokens(
        self, view: SchedulerView, microbatch: MicrobatchView, sequence: SequenceView
    ) -> int:
        """What is left of this step's prompt tokens."""
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
            return wanted  # nobody would free a block by ending
        free = view.num_blocks_free / view.limits.num_blocks
        reserve = options.reserved_share
        allowed = int(most * (free - reserve) / (1.0 - reserve))
        # Prompts that have begun hold their blocks already, and get on a little at any rate.
        least = options.min_prefill_tokens if view.prefilling else 0
        return max(min(wanted, allowed), least)
