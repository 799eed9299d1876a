"""llama.cpp through the functions of its own interface that the package llama-cpp-python binds.

model: a .gguf file. options: ubatch, tokens of a physical batch (default 512); kv_unified, one cache for all
sequences (default false).
"""

from __future__ import annotations

import ctypes
import time
from typing import Any

PACKAGE = "llama_cpp"
_BATCH = 2048


class Driver:
    def __init__(self, package: Any, request: dict[str, Any]) -> None:
        options = request["options"]
        self._api = package
        self._log = package.llama_log_callback(lambda level, text, data: None)
        package.llama_log_set(self._log, ctypes.c_void_p(0))
        package.llama_backend_init()
        model_params = package.llama_model_default_params()
        model_params.n_gpu_layers = 0
        model = package.llama_model_load_from_file(request["model"].encode(), model_params)
        if not model:
            raise RuntimeError(f"llama.cpp cannot load {request['model']}")
        self._vocabulary = package.llama_vocab_n_tokens(package.llama_model_get_vocab(model))
        params = package.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = request["cache_tokens"], _BATCH, options.get("ubatch", 512)
        params.n_seq_max = request["sequences"]
        params.n_threads = params.n_threads_batch = request["threads"]
        params.kv_unified = bool(options.get("kv_unified", False))
        self._context = package.llama_init_from_model(model, params)
        if not self._context:
            raise RuntimeError("llama.cpp cannot make a context")
        self._batch = package.llama_batch_init(_BATCH, 0, 1)
        self.version = f"{package.__version__}: {package.llama_print_system_info().decode().strip()}"

    def generate(self, prompts: list[list[int]], new_tokens: int) -> tuple[list[list[int]], float, float, int]:
        self._api.llama_memory_clear(self._api.llama_get_memory(self._context), True)
        began = time.perf_counter()
        newest: list[int] = []
        each = max(1, _BATCH // max(map(len, prompts)))
        for start in range(0, len(prompts), each):
            part = prompts[start : start + each]
            rows = [
                (token, position, start + number, position == len(prompt) - 1)
                for number, prompt in enumerate(part)
                for position, token in enumerate(prompt)
            ]
            newest += self._decode(rows)
        first = time.perf_counter() - began
        ids = [[token] for token in newest]
        for step in range(new_tokens - 1):
            rows = [(token, len(prompts[row]) + step, row, True) for row, token in enumerate(newest)]
            newest = self._decode(rows)
            for answer, token in zip(ids, newest):  # noqa: B905
                answer.append(token)
        return ids, first, time.perf_counter() - began, len(prompts) * (new_tokens - 1)

    def _decode(self, rows: list[tuple[int, int, int, bool]]) -> list[int]:
        """Run rows of (token, position, sequence, whether its logits are wanted); the best token of each wanted."""
        batch = self._batch
        batch.n_tokens = len(rows)
        for row, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[row], batch.pos[row], batch.n_seq_id[row], batch.logits[row] = token, position, 1, wanted
            batch.seq_id[row][0] = sequence
        code = self._api.llama_decode(self._context, batch)
        if code:
            raise RuntimeError(f"llama_decode returned {code}")
        return [self._best(row) for row, (_, _, _, wanted) in enumerate(rows) if wanted]

    def _best(self, row: int) -> int:
        import numpy as np

        logits = self._api.llama_get_logits_ith(self._context, row)
        return int(np.ctypeslib.as_array(logits, shape=(self._vocabulary,)).argmax())
