"""Keeps tenants' shares fair: virtual counters of the tokens that each was served.

Whoever has been served least comes first, and who comes back starts from what the least served of
the others had, so that nobody saves up a claim by being away (virtual token counter, Sheng et al.,
"Fairness in Serving Large Language Models", OSDI 2024).
"""

from collections.abc import Collection

OUTPUT_WEIGHT = 2
"""A generated token counts like so many of a prompt: it takes a row of a step of its own."""
MAX_COUNTERS = 1024


class FairShare:
    """One counter for each tenant that was served lately."""

    def __init__(self) -> None:
        self._served: dict[str, int] = {}
        self._last_served = 0

    def __getitem__(self, tenant: str) -> int:
        """What it was served; the least comes first."""
        return self._served.get(tenant, 0)

    def arrive(self, tenant: str, others: Collection[str]) -> None:
        """A tenant that had nothing in line has something; `others` have, too."""
        least = min((self[other] for other in others), default=self._last_served)
        self._served[tenant] = max(self[tenant], least)
        if len(self._served) > MAX_COUNTERS:
            kept = {tenant, *others}
            self._served = {name: count for name, count in self._served.items() if name in kept}

    def admit(self, tenant: str, num_tokens: int) -> None:
        """A sequence of it gets a slot, with so many tokens to compute."""
        self._last_served = self[tenant]
        self.charge(tenant, num_tokens)

    def charge(self, tenant: str, num_tokens: int) -> None:
        """It was served so many tokens."""
        self._served[tenant] = self[tenant] + num_tokens
