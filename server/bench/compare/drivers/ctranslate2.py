"""CTranslate2. model: a converted folder with its vocabulary.json. options: compute_type (default int8_float32)."""

from __future__ import annotations

import json
import time
from typing import Any

PACKAGE = "ctranslate2"


class Driver:
    def __init__(self, package: Any, request: dict[str, Any]) -> None:
        self._generator = package.Generator(
            request["model"],
            device="cpu",
            compute_type=request["options"].get("compute_type", "int8_float32"),
            intra_threads=request["threads"],
            inter_threads=1,
        )
        with open(f"{request['model']}/vocabulary.json", encoding="utf-8") as file:  # noqa: PTH123
            self._vocabulary = json.load(file)
        self.version = f"{package.__version__}, {self._generator.compute_type}"

    def generate(self, prompts: list[list[int]], new_tokens: int) -> tuple[list[list[int]], float, float, int]:
        times: list[float] = []

        def came(step: Any) -> bool:
            times.append(time.perf_counter())
            return False

        texts = [[self._vocabulary[token] for token in prompt] for prompt in prompts]
        began = time.perf_counter()
        results = self._generator.generate_batch(
            texts,
            max_length=new_tokens,
            min_length=new_tokens,
            sampling_topk=1,
            beam_size=1,
            end_token=[],
            include_prompt_in_result=False,
            callback=came,
        )
        last = time.perf_counter() - began
        first = times[len(prompts) - 1] - began
        return [result.sequences_ids[0] for result in results], first, last, len(prompts) * (new_tokens - 1)
