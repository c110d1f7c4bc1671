"""The tokens of a simulated stage."""

from stage_worker.execution.simulated_stage import simulated_logprobs


def test_simulated_logprobs_omit_suppressed_tokens() -> None:
    ids, logprobs = simulated_logprobs(3, 5, vocab_size=4, num_logprobs=10, suppressed={1, 2})
    assert sorted(ids) == [0, 3]
    assert len(logprobs) == 2
    assert logprobs[0] > logprobs[1]


def test_simulated_logprobs_are_deterministic() -> None:
    first = simulated_logprobs(3, 5, vocab_size=100, num_logprobs=3)
    assert simulated_logprobs(3, 5, vocab_size=100, num_logprobs=3) == first
    assert (
        simulated_logprobs(3, 5, vocab_size=100, num_logprobs=3, suppressed={first[0][0]}) != first
    )
