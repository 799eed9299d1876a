"""Which proposer makes the drafts: Ortolan's own, or one that is installed under the entry-point group below."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from importlib.metadata import entry_points

from ops.errors import ConfigError, OrtolanError
from rtcore.bundle import Bundle
from rtcore.config import EngineConfig
from rtcore.decoding.speculation.base import Proposer

logger = logging.getLogger(__name__)

GROUP = "ortolan.proposers"
NONE = "none"

Factory = Callable[[Bundle, EngineConfig], Proposer]

PROPOSERS = {
    "ngram": "rtcore.decoding.speculation.ngram:load",
    "draft": "rtcore.decoding.speculation.draft_model:load",
}


def load_proposer(bundle: Bundle, config: EngineConfig) -> Proposer | None:
    """The proposer that `config.speculation` names, for the model of a bundle; None for none.

    Raises ConfigError when there is none of that name or it cannot be loaded, and what its factory raises.
    """
    name = config.speculation
    if name == NONE:
        return None
    if name in PROPOSERS:
        module, _, attribute = PROPOSERS[name].partition(":")
        load: Factory = getattr(importlib.import_module(module), attribute)
        return load(bundle, config)
    installed = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in installed:
        raise ConfigError(
            f"There is no proposer {name!r}.",
            why=f"There are {', '.join(sorted({NONE, *PROPOSERS, *installed}))}.",
            param="speculation",
        )
    try:
        load = installed[name].load()
        return load(bundle, config)
    except OrtolanError:
        raise
    except Exception as error:
        # Code of the user's own may raise anything.
        logger.exception("The proposer %s cannot be loaded", name)
        raise ConfigError(
            f"The proposer {name!r} cannot be loaded.", why=f"{type(error).__name__}: {error}.", param="speculation"
        ) from error
