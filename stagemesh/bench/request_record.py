"""Records the timing of one request of a load test, as measured at the client."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class RequestRecord:
    """Filled while the answer arrives; times are in seconds since the start of the load."""

    sent_at: float
    num_input_tokens: int = 0
    num_output_tokens: int = 0
    # The arrival of each chunk of the answer; a chunk may hold several tokens.
    arrivals: list[float] = field(default_factory=list)
    # The time of completion or failure.
    ended_at: float = 0.0
    error: str = ""

    @property
    def ttft(self) -> float:
        """Time to first token, in seconds."""
        return self.arrivals[0] - self.sent_at

    @property
    def latency(self) -> float:
        """End-to-end latency, in seconds."""
        return self.ended_at - self.sent_at

    @property
    def tpot(self) -> float | None:
        """Seconds per token after the first; None for fewer than two tokens."""
        if self.num_output_tokens < 2:
            return None
        return (self.latency - self.ttft) / (self.num_output_tokens - 1)

    @property
    def gaps(self) -> list[float]:
        """Seconds between consecutive chunks."""
        return [
            after - before for before, after in zip(self.arrivals, self.arrivals[1:], strict=False)
        ]
