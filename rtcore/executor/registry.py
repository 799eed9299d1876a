"""Which executor runs a target."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from ops.errors import BundleDamaged, WrongTarget
from rtcore.bundle import Bundle
from rtcore.config import EngineConfig
from rtcore.executor.base import Executor
from rtcore.manifest import Variant

Factory = Callable[[Bundle, Variant, EngineConfig], Executor]

EXECUTORS = {"cpu": "rtcore.executor.cpu:load", "cuda": "rtcore.executor.cuda:load"}


def load_executor(bundle: Bundle, config: EngineConfig) -> Executor:
    """The executor of the variant that `config` asks for.

    Raises WrongTarget when the bundle or this version of Ortolan has nothing for the target, and
    BundleDamaged when the bundle is a skeleton.
    """
    if config.target not in EXECUTORS:
        raise WrongTarget(
            f"There is no executor for the target {config.target!r}.",
            why=f"This version of Ortolan runs {', '.join(sorted(EXECUTORS))}.",
            param="target",
        )
    variant = bundle.variant(config.precision, config.target)
    if bundle.manifest.skeleton:
        raise BundleDamaged(
            f"The bundle {bundle.path.name} is a skeleton without weights.",
            remedy="Complete it with `ortolan fill`.",
        )
    module, _, name = EXECUTORS[config.target].partition(":")
    load: Factory = getattr(importlib.import_module(module), name)
    return load(bundle, variant, config)
