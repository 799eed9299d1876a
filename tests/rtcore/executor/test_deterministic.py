"""The same tokens have the same logits, bit for bit, in whatever batch, chunk, and number of threads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rtcore.bundle import Bundle
from rtcore.config import EngineConfig
from rtcore.decoding.params import SamplingParams
from rtcore.decoding.stage import Choice, StepRows
from rtcore.engine import Engine
from rtcore.request import EngineRequest
from tests.rtcore.fakes import drain

pytestmark = pytest.mark.export


class Record:
    """Logits of every prefix of tokens that any engine computed; a second computation must have the same bits."""

    def __init__(self) -> None:
        self.known: dict[bytes, bytes] = {}
        self.compared = 0
        self.different = 0
        self.batches: set[int] = set()

    def watch(self, engine: Engine) -> None:
        """Look at the logits of every step before tokens are chosen from them."""
        choose = engine._decoding.choose

        def watched(step: StepRows) -> Choice:
            logits = engine._executor.logits()
            self.batches.add(sum(work.tokens for work in step.works))
            row = 0
            for work in step.works:
                end = work.sequence.computed + work.tokens
                for position in range(end - work.logits, end):
                    self._note(work.sequence.tokens[: position + 1].tobytes(), logits[row].tobytes())
                    row += 1
            return choose(step)

        engine._decoding.choose = watched  # type: ignore[method-assign]

    def _note(self, tokens: bytes, bits: bytes) -> None:
        if tokens in self.known:
            self.compared += 1
            self.different += self.known[tokens] != bits
        else:
            self.known[tokens] = bits


@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
def test_logits_do_not_depend_on_the_batch(tiny_bundle: Path, precision: str) -> None:
    random = np.random.default_rng(7)
    record = Record()
    prompts = [random.integers(3, 400, length).tolist() for length in (1, 5, 40, 130, 17)]
    for trial in range(6):
        config = EngineConfig(
            precision=precision,
            cache_bytes=1 << 25,
            threads=1 + trial % 2,
            max_sequences=8,
            max_step_tokens=512,
            max_prefill_chunk=[None, 3, 17, 64, 33, 1][trial],
            prefix_cache=trial % 3 != 0,
            check="sizes",
        )
        engine = Engine.load(Bundle.open(tiny_bundle, check="sizes"), config)
        record.watch(engine)
        # Alone, in pairs, or all together, in another order each time.
        order = random.permutation(len(prompts))
        size = [1, 5, 3, 5, 2, 4][trial]
        for begin in range(0, len(prompts), size):
            for number in order[begin : begin + size].tolist():
                params = SamplingParams(
                    temperature=0.9, seed=number, max_tokens=10, ignore_eos=True, prompt_logprobs=0
                )
                engine.submit(EngineRequest(f"r{number}", prompts[number], params))
            drain(engine)
        engine.close()
    assert len(record.batches) > 20
    assert record.compared > 5 * len(record.known) * 0.9
    assert record.different == 0
