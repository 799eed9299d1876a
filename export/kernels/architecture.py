"""The architectures that kernels are compiled for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ops.errors import ConfigError

#: Compute capabilities by default: A100, A10, L4, H100, B200, RTX 50.
DEFAULT = (80, 86, 89, 90, 100, 120)
_AMD = ("gfx942",)
_SHARED_KB: dict[int | None, int] = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}


@dataclass(frozen=True)
class Architecture:
    """name: sm_90 or gfx942, as a bundle's folders are called. capability: 90 for NVIDIA, None for AMD."""

    name: str
    capability: int | None

    def gpu_target(self) -> Any:
        """What triton.compile takes."""
        from triton.backends.compiler import GPUTarget

        if self.capability is None:
            return GPUTarget("hip", self.name, 64)
        return GPUTarget("cuda", self.capability, 32)

    @property
    def shared_memory(self) -> int:
        """Bytes that one program may have (CUDA C++ Programming Guide, technical specifications; CDNA 3's LDS)."""
        return _SHARED_KB.get(self.capability, 64) * 1024

    @property
    def binary(self) -> str:
        """The kind of binary that comes out."""
        return "hsaco" if self.capability is None else "cubin"


def architecture(text: str) -> Architecture:
    """The architecture that a user calls 90, sm_90 or gfx942. Raises ConfigError for an unknown one."""
    name = text.strip()
    if name in _AMD:
        return Architecture(name, None)
    number = name.removeprefix("sm_")
    if number.isdigit() and int(number) in DEFAULT:
        return Architecture(f"sm_{number}", int(number))
    raise ConfigError(
        f"There are no kernels for the architecture {text!r}.",
        remedy=f"Choose from {', '.join(map(str, DEFAULT))}, {', '.join(_AMD)}.",
        param="--target",
    )
