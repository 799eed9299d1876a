"""vLLM's CPU backend. model: a Hugging Face folder. options: dtype (default bfloat16), eager (default true).

Its threads and cache are set by environment variables: VLLM_CPU_OMP_THREADS_BIND, VLLM_CPU_KVCACHE_SPACE, and
VLLM_ENABLE_V1_MULTIPROCESSING=0 so that its memory is that of this process.
"""

from __future__ import annotations

import time
from typing import Any

PACKAGE = "vllm"


class Driver:
    def __init__(self, package: Any, request: dict[str, Any]) -> None:
        options = request["options"]
        self._api = package
        self._model = package.LLM(
            request["model"],
            dtype=options.get("dtype", "bfloat16"),
            max_model_len=min(2048, request["cache_tokens"]),
            max_num_seqs=request["sequences"],
            enable_prefix_caching=False,
            enforce_eager=options.get("eager", True),
            disable_log_stats=True,
        )
        self.version = package.__version__

    def generate(self, prompts: list[list[int]], new_tokens: int) -> tuple[list[list[int]], float, float, int]:
        """The first token is timed in a call of its own, since a call gives all its tokens at its end."""
        ids, first = self._call(prompts, 1)
        if new_tokens == 1:
            return ids, first, first, 0
        ids, last = self._call(prompts, new_tokens)
        return ids, first, last, len(prompts) * (new_tokens - 1)

    def _call(self, prompts: list[list[int]], new_tokens: int) -> tuple[list[list[int]], float]:
        params = self._api.SamplingParams(
            temperature=0.0, max_tokens=new_tokens, min_tokens=new_tokens, ignore_eos=True, detokenize=False
        )
        began = time.perf_counter()
        results = self._model.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        return [list(result.outputs[0].token_ids) for result in results], time.perf_counter() - began
