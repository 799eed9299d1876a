"""onnxruntime-genai. model: a folder made by its model builder. Prompts of one call must be equally long."""

from __future__ import annotations

import json
import time
from typing import Any

PACKAGE = "onnxruntime_genai"


class Driver:
    def __init__(self, package: Any, request: dict[str, Any]) -> None:
        self._api = package
        config = package.Config(request["model"])
        session = {"intra_op_num_threads": request["threads"], "inter_op_num_threads": 1}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": session}}}))
        self._model = package.Model(config)
        self.version = package.__version__

    def generate(self, prompts: list[list[int]], new_tokens: int) -> tuple[list[list[int]], float, float, int]:
        import numpy as np

        length = len(prompts[0])
        total = length + new_tokens
        params = self._api.GeneratorParams(self._model)
        params.set_search_options(max_length=total, min_length=total, batch_size=len(prompts), do_sample=False)
        began = time.perf_counter()
        generator = self._api.Generator(self._model, params)
        generator.append_tokens(np.asarray(prompts if len(prompts) > 1 else prompts[0], dtype=np.int32))
        generator.generate_next_token()
        first = time.perf_counter() - began
        for _ in range(new_tokens - 1):
            generator.generate_next_token()
        last = time.perf_counter() - began
        ids = [[int(token) for token in generator.get_sequence(row)[length:]] for row in range(len(prompts))]
        return ids, first, last, len(prompts) * (new_tokens - 1)
