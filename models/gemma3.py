"""Gemma 3 (text): five layers with a sliding window and their own rotary base to each full one."""

from __future__ import annotations

from dataclasses import dataclass

from models.family import Config, Family, refuse


@dataclass(frozen=True)
class Gemma3Family(Family):
    """Text models only; the embedding models of the family attend in both directions."""

    def check(self, config: Config) -> None:
        super().check(config)
        if config.get("use_bidirectional_attention"):
            raise refuse(self.name, "attention in both directions", "use_bidirectional_attention")


GEMMA3 = Gemma3Family(name="Gemma 3", model_types=("gemma3_text",), stop_tokens=("<end_of_turn>",))
