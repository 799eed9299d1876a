"""GPT-2: learned positions, layer norms, linears stored as [K, N]."""

from __future__ import annotations

from dataclasses import dataclass

from models.family import Config, Family, refuse


@dataclass(frozen=True)
class GPT2Family(Family):
    """Decoder-only GPT-2; the variant with cross attention belongs to an encoder."""

    def check(self, config: Config) -> None:
        super().check(config)
        if config.get("add_cross_attention"):
            raise refuse(self.name, "cross attention", "add_cross_attention")


GPT2 = GPT2Family(name="GPT-2", model_types=("gpt2",), stop_tokens=("<|endoftext|>",))
