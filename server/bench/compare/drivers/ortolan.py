"""Ortolan itself, in the process that drives it: the same engine and scheduler that serve requests.

options: precision, and any other field of rtcore.config.EngineConfig.
"""

from __future__ import annotations

import importlib.metadata
import time
from pathlib import Path
from typing import Any

PACKAGE = "rtcore.engine"
_NO_TARGET = 1e6


class Driver:
    def __init__(self, package: Any, request: dict[str, Any]) -> None:
        from rtcore.bundle import Bundle
        from rtcore.config import EngineConfig
        from rtcore.loading import load_engine

        options = dict(request["options"])
        path = Path(request["model"])
        with Bundle.open(path, check="sizes") as bundle:
            variant = bundle.variant(options.get("precision"), "cpu")
        slot = sum(tensor.slot_bytes for tensor in variant.cache_tensors)
        settings: dict[str, Any] = {
            "threads": request["threads"],
            "cache_bytes": slot * request["cache_tokens"],
            "max_sequences": request["sequences"],
            "target_step_ms": _NO_TARGET,
            **options,
        }
        self._engine = load_engine(path, EngineConfig.of(settings))
        self._number = 0
        self.version = importlib.metadata.version("ortolan")

    def generate(self, prompts: list[list[int]], new_tokens: int) -> tuple[list[list[int]], float, float, int]:
        from rtcore.decoding.params import SamplingParams
        from rtcore.request import EngineRequest

        params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True)
        began = time.perf_counter()
        answers: dict[str, list[int]] = {}
        for prompt in prompts:
            self._number += 1
            answers[str(self._number)] = []
            self._engine.submit(EngineRequest(id=str(self._number), prompt_ids=prompt, params=params))
        first, before = 0.0, 0
        while self._engine.has_work:
            for delta in self._engine.step().deltas:
                if delta.failure is not None:
                    raise RuntimeError(delta.failure.what)
                answers[delta.id] += delta.token_ids
            if not first and all(answers.values()):
                first, before = time.perf_counter() - began, sum(map(len, answers.values()))
        last = time.perf_counter() - began
        ids = list(answers.values())
        return ids, first, last, sum(map(len, ids)) - before
