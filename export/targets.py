"""What a bundle is exported for: the CPU, or GPUs of certain architectures."""

from __future__ import annotations

from dataclasses import dataclass

from export.kernels.architecture import DEFAULT, Architecture, architecture
from ops.errors import ConfigError


@dataclass(frozen=True)
class Target:
    """name: cpu or cuda, as executors are called. architectures: those that kernels are compiled for."""

    name: str
    architectures: tuple[Architecture, ...] = ()


CPU = Target("cpu")


def targets_of(text: str) -> tuple[Target, ...]:
    """The targets that a list such as "cpu,cuda:90,cuda:gfx942" names. Raises ConfigError."""
    names: dict[str, dict[str, Architecture]] = {}
    for part in text.split(","):
        name, colon, arch = part.strip().partition(":")
        if name not in ("cpu", "cuda") or (name == "cpu" and colon):
            raise ConfigError(
                f"There is no target {part.strip()!r}.",
                remedy="Choose cpu, cuda, or cuda:90 and the like.",
                param="--target",
            )
        chosen = names.setdefault(name, {})
        wanted = [arch] if colon else list(map(str, DEFAULT)) if name == "cuda" else []
        for one in map(architecture, wanted):
            chosen[one.name] = one
    return tuple(Target(name, tuple(chosen.values())) for name, chosen in names.items())
