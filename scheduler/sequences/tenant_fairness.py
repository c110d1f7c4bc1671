"""Fair shares of tenants: virtual counters of the tokens that each tenant was served.

The tenant with the lowest counter comes first. A returning tenant starts from the lowest counter of
the others, so that idle time earns no credit (virtual token counter, Sheng et al., "Fairness in
Serving Large Language Models", OSDI 2024).
"""

from collections.abc import Collection

OUTPUT_WEIGHT = 2
"""Weight of a generated token relative to a prompt token."""
MAX_COUNTERS = 1024


class FairShare:
    """One counter for each recently served tenant."""

    def __init__(self) -> None:
        self._served: dict[str, int] = {}
        self._last_served = 0

    def __getitem__(self, tenant: str) -> int:
        """The tenant's counter; the lowest is served first."""
        return self._served.get(tenant, 0)

    def arrive(self, tenant: str, others: Collection[str]) -> None:
        """Initialises a tenant whose queue was empty; `others` have waiting sequences."""
        least = min((self[other] for other in others), default=self._last_served)
        self._served[tenant] = max(self[tenant], least)
        if len(self._served) > MAX_COUNTERS:
            kept = {tenant, *others}
            self._served = {name: count for name, count in self._served.items() if name in kept}

    def admit(self, tenant: str, num_tokens: int) -> None:
        """Charges an admitted sequence with `num_tokens` to compute."""
        self._last_served = self[tenant]
        self.charge(tenant, num_tokens)

    def charge(self, tenant: str, num_tokens: int) -> None:
        """Adds served tokens to the tenant's counter."""
        self._served[tenant] = self[tenant] + num_tokens
