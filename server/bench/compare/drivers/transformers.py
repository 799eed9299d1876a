"""transformers on PyTorch's CPU kernels. model: a Hugging Face folder. options: dtype (default float32).
Prompts of one call must be equally long."""

from __future__ import annotations

import importlib
import time
from typing import Any

PACKAGE = "transformers"


class Driver:
    def __init__(self, package: Any, request: dict[str, Any]) -> None:
        self._torch = importlib.import_module("torch")
        self._torch.set_num_threads(request["threads"])
        dtype = getattr(self._torch, request["options"].get("dtype", "float32"))
        self._model = package.AutoModelForCausalLM.from_pretrained(request["model"], dtype=dtype).eval()
        self._model.generation_config.eos_token_id = None
        self._model.generation_config.pad_token_id = 0
        self.version = f"{package.__version__}, torch {self._torch.__version__}"

    def generate(self, prompts: list[list[int]], new_tokens: int) -> tuple[list[list[int]], float, float, int]:
        times: list[float] = []

        def came(ids: Any, scores: Any) -> Any:
            times.append(time.perf_counter())
            return scores

        tokens = self._torch.tensor(prompts)
        began = time.perf_counter()
        with self._torch.inference_mode():
            found = self._model.generate(
                input_ids=tokens,
                attention_mask=self._torch.ones_like(tokens),
                max_new_tokens=new_tokens,
                do_sample=False,
                logits_processor=[came],
            )
        ids = found[:, tokens.shape[1] :].tolist()
        return ids, times[0] - began, times[-1] - began, len(prompts) * (new_tokens - 1)
