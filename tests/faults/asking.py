"""Requests in flight while something breaks, and the comparison with an undisturbed run."""

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise

from stagemesh import Client, GenerationRequest, Sampling, Scheduling, StagemeshRpcError, TokenIds
from tests.faults.cluster import Cluster

ANSWER_SECONDS = 90.0
SHORT, LONG = tuple(range(5, 25)), tuple(3 + 7 * i % 310 for i in range(1500))
GREEDY, SEEDED = Sampling(), Sampling(temperature=0.9, top_p=0.95, seed=11)

Tokens = tuple[int, ...]


def request_of(
    prompt: Tokens = SHORT, sampling: Sampling = GREEDY, max_tokens: int = 150
) -> GenerationRequest:
    """A request whose answer has exactly `num_tokens` tokens."""
    return GenerationRequest(
        prompts=(TokenIds(prompt),), sampling=sampling, max_tokens=max_tokens, ignore_eos=True
    )


def salted(request: GenerationRequest) -> GenerationRequest:
    """The same, but that a prompt which was computed before is computed again."""
    return replace(request, scheduling=Scheduling(cache_salt=uuid.uuid4().hex))


# Greedy and seeded; the long prompt takes some twenty steps of prefill.
REQUESTS = (request_of(), request_of(sampling=SEEDED), request_of(LONG, max_tokens=30))


@dataclass(slots=True)
class Asked:
    """One request in a thread of its own."""

    request: GenerationRequest
    target: str
    tokens: list[int] = field(default_factory=list)
    error: StagemeshRpcError | None = None
    # When it was asked, and when each update came.
    times: list[float] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _thread: threading.Thread | None = None
    _is_over: bool = False

    def start(self) -> None:
        """Asks."""
        self.times.append(time.monotonic())
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def wait_for_tokens(self, count: int) -> None:
        """Waits for `num_tokens` tokens, or the end of the answer."""
        with self._changed:
            self._changed.wait_for(
                lambda: len(self.tokens) >= count or self._is_over, ANSWER_SECONDS
            )

    @property
    def is_over(self) -> bool:
        """It ended, well or not."""
        return self._is_over

    def result(self) -> Tokens:
        """All tokens; raises what the call ended with."""
        assert self._thread is not None
        self._thread.join(ANSWER_SECONDS + 10)
        if self.error is not None:
            raise self.error
        return tuple(self.tokens)

    def longest_wait(self, since: float, until: float) -> float:
        """Seconds in which nothing came, at a stretch, of waits that last at `since` or later.

        Of those that begin after `until`, none counts. For an answer that is over.
        """
        return max(
            (
                end - max(start, since)
                for start, end in pairwise(self.times)
                if end > since and start < until
            ),
            default=0.0,
        )

    def _run(self) -> None:
        try:
            with Client(self.target) as client:
                for update in client.infer(self.request, timeout_seconds=ANSWER_SECONDS):
                    with self._changed:
                        self.times.append(time.monotonic())
                        self.tokens.extend(token.id for token in update.tokens)
                        self._changed.notify_all()
        except StagemeshRpcError as error:
            self.error = error
        finally:
            with self._changed:
                self._is_over = True
                self._changed.notify_all()


_undisturbed: dict[tuple[str, tuple[int, ...], GenerationRequest], Tokens] = {}


def undisturbed(cluster: Cluster, request: GenerationRequest) -> Tokens:
    """What a healthy mesh answers; asked once for each model and count of ranks."""
    key = (cluster.model, cluster.layout.tp, request)
    if key not in _undisturbed:
        asked = Asked(request, cluster.target)
        asked.start()
        _undisturbed[key] = asked.result()
        assert len(_undisturbed[key]) == request.max_tokens
    return _undisturbed[key]


@contextmanager
def asking(cluster: Cluster, *requests: GenerationRequest) -> Iterator[list[Asked]]:
    """The requests in flight; afterwards each has the tokens of an undisturbed run."""
    expected = [undisturbed(cluster, request) for request in requests]
    asked = [Asked(salted(request), cluster.target) for request in requests]
    for each in asked:
        each.start()
    yield asked
    for each, tokens in zip(asked, expected, strict=True):
        assert each.result() == tokens, cluster.logs()


def disturbed(cluster: Cluster, disturb: Callable[[], None], after_tokens: int = 5) -> None:
    """Breaks something once all of REQUESTS have begun to answer; nothing is lost or different."""
    with asking(cluster, *REQUESTS) as asked:
        for each in asked[:2]:
            each.wait_for_tokens(after_tokens)
        disturb()
