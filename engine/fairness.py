"""Shares of the engine's tokens between tenants.

The virtual token counter of Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024: whoever has had the
fewest tokens goes first, and a tenant that comes back from idling does not bring the tokens it did not use.
"""


class TenantShares:
    """Tokens that each active tenant has had. A tenant is active while it has live sequences."""

    def __init__(self) -> None:
        self._tokens: dict[str, int] = {}
        self._live: dict[str, int] = {}

    def enter(self, tenant: str) -> None:
        """One more live sequence."""
        if tenant not in self._live:
            least = min((self._tokens[other] for other in self._live), default=0)
            self._tokens[tenant] = max(self._tokens.get(tenant, 0), least)
        self._live[tenant] = self._live.get(tenant, 0) + 1

    def leave(self, tenant: str) -> None:
        """One live sequence less."""
        self._live[tenant] -= 1
        if self._live[tenant]:
            return
        del self._live[tenant]
        # Whoever is not ahead of the active tenants would be lifted to them anyway on return: nothing to remember.
        least = min((self._tokens[other] for other in self._live), default=None)
        self._tokens = {
            other: tokens
            for other, tokens in self._tokens.items()
            if other in self._live or (least is not None and tokens > least)
        }

    def charge(self, tenant: str, num_tokens: int) -> None:
        """Count tokens computed for an active tenant."""
        self._tokens[tenant] += num_tokens

    def tokens(self, tenant: str) -> int:
        """Tokens counted for an active tenant."""
        return self._tokens[tenant]
