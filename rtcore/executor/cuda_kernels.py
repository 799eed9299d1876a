"""The GPU kernels of a bundle: which packed architecture a device runs, read, checked and loaded."""

from __future__ import annotations

import re

import msgspec

from ops.cuda import CudaDevice, Kernel, misfit
from ops.errors import BundleDamaged, EngineError, WrongTarget
from rtcore.bundle import Bundle
from rtcore.kernels import KernelSet, folder_of, index_of
from rtcore.manifest import Variant

_PLAIN_NAME = re.compile(r"sm_[0-9]{2,3}")
_OWN_FEATURES = 90


def choose_architecture(device: int, packed: tuple[str, ...]) -> str | None:
    """The best of the packed architectures (sm_90 ...) for a device of compute capability `device` (90 ...).

    A cubin runs on devices of its own major version and of its minor version or a later one (CUDA C++ Programming
    Guide, binary compatibility). From 9.0 on Triton compiles for features of one architecture alone, and such a
    cubin runs on no other.
    """
    numbers = [int(name[3:]) for name in packed if _PLAIN_NAME.fullmatch(name)]
    fitting = [
        number
        for number in numbers
        if number == device or (number < _OWN_FEATURES and number // 10 == device // 10 and number <= device)
    ]
    return f"sm_{max(fitting)}" if fitting else None


def load_kernels(bundle: Bundle, variant: Variant, device: CudaDevice) -> str:
    """Load the kernels that fit `device` and return their architecture.

    Raises WrongTarget, listing what is packed, where none fits; BundleDamaged where their index cannot be read.
    """
    chosen = choose_architecture(device.architecture, variant.architectures)
    if chosen is None:
        raise WrongTarget(
            f"The bundle {bundle.path.name} has no kernels for this GPU ({device.name}, sm_{device.architecture}).",
            why=f"It packs {', '.join(variant.architectures) or 'none'}.",
            remedy=f"Export the model with --target cuda:{device.architecture}.",
            param="target",
        )
    index = index_of(chosen)
    try:
        found = msgspec.json.decode(bundle.file(index).read_bytes(), type=KernelSet)
        images = [bundle.file(f"{folder_of(chosen)}/{record.file}").read_bytes() for record in found.kernels]
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BundleDamaged(
            f"{index} or a kernel that it names cannot be read.",
            why=f"{error}.",
            remedy="Copy the bundle again, or export the model anew.",
            param=index,
        ) from error
    for record, image in zip(found.kernels, images, strict=True):
        device.add_kernel(
            Kernel(
                key=record.key,
                entry=record.entry,
                arguments=record.arguments,
                warps=record.warps,
                shared=record.shared,
                rows=record.rows,
                columns=record.columns,
                constants=record.constants,
                image=image,
            )
        )
    return chosen


def of_bundle(error: EngineError, variant: Variant) -> BundleDamaged | None:
    """What a failure of the first steps says of the bundle, where an operator says that kernels or weights are not
    what this version launches (`ops.cuda.misfit`); else None."""
    if misfit() not in error.why:
        return None
    return BundleDamaged(
        f"The kernels of {variant.step} and this version of Ortolan do not fit.",
        why=error.why.replace(misfit(), ""),
        remedy="Export the model anew with this version.",
        param=variant.step,
    )
