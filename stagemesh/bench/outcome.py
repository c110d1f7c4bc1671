"""Owns what one request of a load test came to, as its client saw it."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Outcome:
    """Filled while the answer comes; moments in seconds since the load began."""

    sent_at: float
    num_input_tokens: int = 0
    num_output_tokens: int = 0
    # When each piece of the answer came; one piece may hold several tokens.
    arrivals: list[float] = field(default_factory=list)
    # When the answer was complete, or had failed.
    ended_at: float = 0.0
    error: str = ""

    @property
    def ttft(self) -> float:
        """Seconds to the first token."""
        return self.arrivals[0] - self.sent_at

    @property
    def latency(self) -> float:
        """Seconds to the end."""
        return self.ended_at - self.sent_at

    @property
    def tpot(self) -> float | None:
        """Seconds per token after the first; None where there was no other."""
        if self.num_output_tokens < 2:
            return None
        return (self.latency - self.ttft) / (self.num_output_tokens - 1)

    @property
    def gaps(self) -> list[float]:
        """Seconds between pieces."""
        return [
            after - before for before, after in zip(self.arrivals, self.arrivals[1:], strict=False)
        ]
