"""Limits each tenant's requests in flight and its tokens per minute, prompts and answers together.

Tokens are limited by a token bucket (https://en.wikipedia.org/wiki/Token_bucket) that holds one
minute's tokens and refills at a constant rate. A request is admitted while the level is above 0 and
may overdraw it, because the length of its answer is not known before; the next request is admitted
when the level is above 0 again. The average rate therefore stays below the limit.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from coordinator.security.api_keys import Tenant
from runtime.errors import TokenRateError, TooManyInFlightError

_MINUTE_SECONDS = 60.0


class Account:
    """One tenant's requests in flight and its token bucket."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.num_in_flight = 0
        self._clock = clock
        self._limit: int | None = None
        self._level = 0.0
        self._filled_at = clock()

    def check(self, tenant: Tenant) -> None:
        """Raises `TooManyInFlightError` or `TokenRateError` if no request may be admitted now."""
        limit = tenant.max_in_flight
        if limit is not None and self.num_in_flight >= limit:
            raise TooManyInFlightError(limit=limit)
        self._set_limit(tenant.tokens_per_minute)
        if self._limit is not None and self._level <= 0:
            wait = math.ceil(-self._level * _MINUTE_SECONDS / self._limit)
            raise TokenRateError(tokens_per_minute=self._limit, wait_seconds=max(1, wait))

    def charge(self, num_tokens: int) -> None:
        """Removes tokens that were read or generated from the bucket."""
        if self._limit is not None:
            self._refill(self._limit)
            self._level -= num_tokens

    def _set_limit(self, limit: int | None) -> None:
        """Applies the current limit; a bucket with a new limit starts full."""
        if limit is not None and self._limit == limit:
            self._refill(limit)
        else:
            self._level, self._filled_at = float(limit or 0), self._clock()
        self._limit = limit

    def _refill(self, limit: int) -> None:
        now = self._clock()
        earned = (now - self._filled_at) * limit / _MINUTE_SECONDS
        self._level, self._filled_at = min(float(limit), self._level + earned), now


class Quotas:
    """The accounts of all tenants; their number is bounded by the number of keys."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._accounts: dict[str, Account] = {}

    @contextmanager
    def admit(self, tenant: Tenant) -> Iterator[Account]:
        """Counts one request of `tenant` while the block runs; raises as `Account.check` does."""
        account = self._accounts.setdefault(tenant.name, Account(self._clock))
        account.check(tenant)
        account.num_in_flight += 1
        try:
            yield account
        finally:
            account.num_in_flight -= 1
