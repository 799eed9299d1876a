"""MixtureFamily: families whose feed-forward layers are mixtures of experts."""

from __future__ import annotations

from dataclasses import dataclass

from models.family import Config, Family, malformed

#: Far more than any model has; a router is tried on random numbers when it is captured.
MOST_EXPERTS = 4096


@dataclass(frozen=True)
class MixtureFamily(Family):
    """experts_field: where config.json says how many experts a layer has."""

    experts_field: str = "num_experts"

    def check(self, config: Config) -> None:
        """Raises CheckpointError, too, when a token has no experts or more than there are."""
        super().check(config)
        experts, chosen = config.get(self.experts_field), config.get("num_experts_per_tok")
        for field, value, most in (
            (self.experts_field, experts, MOST_EXPERTS),
            ("num_experts_per_tok", chosen, experts if isinstance(experts, int) else MOST_EXPERTS),
        ):
            if value is not None and (type(value) is not int or not 1 <= value <= most):
                raise malformed(config, ValueError(f"{field} is {value!r}; it must be from 1 to {most}."))
