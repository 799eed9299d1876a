"""OpenVINO GenAI. model: a .gguf file or a folder of OpenVINO's format. Prompts of one call must be equally long.

options: precision_hint (default f32), attention (SDPA or PA, default SDPA).
"""

from __future__ import annotations

import importlib
import time
from typing import Any

PACKAGE = "openvino_genai"


class Driver:
    def __init__(self, package: Any, request: dict[str, Any]) -> None:
        options = request["options"]
        self._api = package
        self._pipeline = package.LLMPipeline(
            request["model"],
            "CPU",
            ATTENTION_BACKEND=options.get("attention", "SDPA"),
            INFERENCE_NUM_THREADS=request["threads"],
            PERFORMANCE_HINT="LATENCY",
            INFERENCE_PRECISION_HINT=options.get("precision_hint", "f32"),
        )
        self.version = package.__version__

    def generate(self, prompts: list[list[int]], new_tokens: int) -> tuple[list[list[int]], float, float, int]:
        import numpy as np

        openvino = importlib.import_module("openvino")

        config = self._api.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = new_tokens
        config.ignore_eos, config.do_sample, config.apply_chat_template = True, False, False
        tokens = np.asarray(prompts, dtype=np.int64)
        inputs = self._api.TokenizedInputs(openvino.Tensor(tokens), openvino.Tensor(np.ones_like(tokens)))
        began = time.perf_counter()
        result = self._pipeline.generate(inputs, config)
        last = time.perf_counter() - began
        first = result.perf_metrics.get_ttft().mean / 1e3
        ids = [[int(token) for token in row] for row in result.tokens]
        return ids, first, last, len(prompts) * (new_tokens - 1)
