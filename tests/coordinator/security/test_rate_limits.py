"""Limits of a tenant's requests in flight and tokens per minute, on a virtual clock."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.security.api_keys import ANONYMOUS, Tenant
from coordinator.security.rate_limits import Quotas
from runtime.errors import TokenRateError, TooManyInFlightError


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_requests_beyond_the_limit_are_refused_until_one_ends() -> None:
    quotas, alice = Quotas(Clock()), Tenant("alice", max_in_flight=2)
    with quotas.admit(alice), quotas.admit(Tenant("bob", max_in_flight=1)):
        with quotas.admit(alice), pytest.raises(TooManyInFlightError), quotas.admit(alice):
            pass
        with quotas.admit(alice):
            pass


def test_request_that_fails_is_no_longer_in_flight() -> None:
    quotas, alice = Quotas(Clock()), Tenant("alice", max_in_flight=1)
    with pytest.raises(ZeroDivisionError), quotas.admit(alice):
        raise ZeroDivisionError
    with quotas.admit(alice):
        pass


def test_tenant_with_an_overdrawn_bucket_waits_until_it_is_refilled() -> None:
    clock = Clock()
    quotas, alice = Quotas(clock), Tenant("alice", tokens_per_minute=60)
    with quotas.admit(alice) as account:
        account.charge(60 + 5)
    with pytest.raises(TokenRateError) as caught, quotas.admit(alice):
        pass
    assert caught.value.retry_after_seconds == 5
    clock.now += 5.5
    with quotas.admit(alice):
        pass


def test_changed_limit_applies_from_the_next_request() -> None:
    quotas = Quotas(Clock())
    with quotas.admit(Tenant("alice")) as account:
        account.charge(10**9)
    with quotas.admit(Tenant("alice", tokens_per_minute=10)) as account:
        account.charge(11)
    with pytest.raises(TokenRateError), quotas.admit(Tenant("alice", tokens_per_minute=10)):
        pass


def test_anonymous_clients_have_no_limit() -> None:
    quotas = Quotas(Clock())
    with quotas.admit(ANONYMOUS) as first, quotas.admit(ANONYMOUS):
        first.charge(10**9)
    with quotas.admit(ANONYMOUS):
        pass


@given(
    limit=st.integers(1, 1000),
    demands=st.lists(st.tuples(st.floats(0, 100), st.integers(0, 2000)), max_size=50),
)
def test_tokens_used_over_time_never_exceed_the_rate_by_more_than_a_bucket_and_a_request(
    limit: int, demands: list[tuple[float, int]]
) -> None:
    clock = Clock()
    quotas, tenant = Quotas(clock), Tenant("alice", tokens_per_minute=limit)
    used = 0
    for pause, num_tokens in demands:
        clock.now += pause
        try:
            with quotas.admit(tenant) as account:
                account.charge(num_tokens)
                used += num_tokens
                last = num_tokens
        except TokenRateError:
            continue
        assert used <= limit + limit * clock.now / 60 + last + 1e-6
