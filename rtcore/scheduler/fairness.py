"""TenantAccounts: who was served how much, so that tenants get their shares."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from operator import itemgetter

MOST_COUNTERS = 8192
_KEPT_COUNTERS = MOST_COUNTERS // 2


class TenantAccounts:
    """Virtual token counters (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024).

    A tenant's counter grows by the tokens computed for it, divided by its weight, and the tenant with the
    smallest counter is served next. One that comes back after a pause starts no lower than the counter served
    last: nobody saves up.

    Of more than `MOST_COUNTERS` tenants only the half that was served most is remembered: where ever new ones come,
    the counter served last does not rise, so that those who never come back would else be kept for good.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        """weights: of tenants that do not have the weight 1."""
        self._weights = weights
        self._counters: dict[str, float] = {}
        self._floor = 0.0

    def counter(self, tenant: str) -> float:
        return self._counters.get(tenant, self._floor)

    def activate(self, tenant: str) -> None:
        """The tenant has requests waiting, after it had none."""
        self._counters[tenant] = max(self._floor, self.counter(tenant))
        if len(self._counters) > MOST_COUNTERS:
            self._forget()

    def _forget(self) -> None:
        """Go on with few enough counters that the next time is thousands of tenants away."""
        known = [item for item in self._counters.items() if item[1] > self._floor]
        self._counters = dict(heapq.nlargest(_KEPT_COUNTERS, known, key=itemgetter(1)))

    def __len__(self) -> int:
        return len(self._counters)

    def charge(self, tenant: str, tokens: int) -> None:
        """Tokens were computed for the tenant."""
        self._counters[tenant] = self._counters.get(tenant, self._floor) + tokens / self._weights.get(tenant, 1.0)

    def serve(self, tenant: str) -> None:
        """The tenant is the one to be served now."""
        self._floor = max(self._floor, self._counters.get(tenant, 0.0))
