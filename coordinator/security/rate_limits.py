"""Owns what each tenant has under way and how many tokens it may still use this minute.

Tokens are those of prompts and of answers. They fill a bucket that holds a minute's worth and is
refilled steadily; a request is let in while the bucket holds any, and may overdraw it: its length
is not known before. Then the tenant waits until the debt is paid, so that over time no more than
its rate is used.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from coordinator.security.api_keys import Tenant
from runtime.errors import TokenRateError, TooManyInFlightError

_MINUTE_SECONDS = 60.0


class Account:
    """One tenant's requests and tokens."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.num_in_flight = 0
        self._clock = clock
        self._limit: int | None = None
        self._level = 0.0
        self._filled_at = clock()

    def check(self, tenant: Tenant) -> None:
        """Raises `TooManyInFlightError` or `TokenRateError` if no request may come in now."""
        limit = tenant.max_in_flight
        if limit is not None and self.num_in_flight >= limit:
            raise TooManyInFlightError(limit=limit)
        self._allow(tenant.tokens_per_minute)
        if self._limit is not None and self._level <= 0:
            wait = math.ceil(-self._level * _MINUTE_SECONDS / self._limit)
            raise TokenRateError(tokens_per_minute=self._limit, wait_seconds=max(1, wait))

    def charge(self, num_tokens: int) -> None:
        """Takes tokens that were read or generated out of the bucket."""
        if self._limit is not None:
            self._fill(self._limit)
            self._level -= num_tokens

    def _allow(self, limit: int | None) -> None:
        """Takes the limit over, which may be a new one: the bucket then starts full."""
        if limit is not None and self._limit == limit:
            self._fill(limit)
        else:
            self._level, self._filled_at = float(limit or 0), self._clock()
        self._limit = limit

    def _fill(self, limit: int) -> None:
        now = self._clock()
        earned = (now - self._filled_at) * limit / _MINUTE_SECONDS
        self._level, self._filled_at = min(float(limit), self._level + earned), now


class Quotas:
    """The accounts of all tenants, which are as many as there are keys."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._accounts: dict[str, Account] = {}

    @contextmanager
    def admit(self, tenant: Tenant) -> Iterator[Account]:
        """Counts one request of `tenant` while the block runs; raises what `Account.check` does."""
        account = self._accounts.setdefault(tenant.name, Account(self._clock))
        account.check(tenant)
        account.num_in_flight += 1
        try:
            yield account
        finally:
            account.num_in_flight -= 1
