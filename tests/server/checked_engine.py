"""A factory for engine processes: the real engine, which checks its invariants after every step."""

from __future__ import annotations

import msgspec

from rtcore.config import EngineConfig
from rtcore.engine import Engine
from rtcore.loading import load_engine


def load(bundle: str, config: EngineConfig) -> Engine:
    """As rtcore.loading.load_engine."""
    return load_engine(bundle, msgspec.structs.replace(config, debug_invariants=True))
