"""fp32 greedy tokens of the bundle equal those of transformers, however the requests are run."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from tokenizers import Tokenizer

from rtcore import LLM, SamplingParams
from rtcore.bundle import Bundle
from rtcore.config import EngineConfig
from rtcore.engine import Engine
from rtcore.request import EngineRequest
from rtcore.text.frontend import TextFrontend
from tests.e2e.server_process import ServerProcess
from tests.reference.smollm2 import QUICK, QUICK_TOKENS, Entry, departure, reference

CHUNKS = (1, 7, 16, 64)
BATCH = 16
FULL = reference().prompts
TOKENS = reference().steps


def greedy(tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)


def engine(bundle: Path, chunk: int | None = None) -> Engine:
    config = EngineConfig(
        precision="fp32", check="sizes", max_prefill_chunk=chunk, cache_bytes=2**30, debug_invariants=True
    )
    return Engine.load(Bundle.open(bundle, check="sizes"), config)


def run_staggered(engine: Engine, entries: list[Entry], tokens: int, every: int) -> list[list[int]]:
    """Run all entries, one more arriving every `every` steps (0: all at once), at most BATCH at a time."""
    results: list[list[int]] = [[] for _ in entries]
    waiting = list(enumerate(entries))
    live: set[str] = set()
    steps = 0
    while waiting or live:
        while waiting and len(live) < BATCH and (every == 0 or steps % every == 0 or not live):
            number, entry = waiting.pop(0)
            engine.submit(EngineRequest(id=str(number), prompt_ids=entry.prompt_ids, params=greedy(tokens)))
            live.add(str(number))
            if every:
                break
        for delta in engine.step().deltas:
            results[int(delta.id)] += delta.token_ids
            if delta.finish_reason is not None:
                assert delta.finish_reason == "length"
                live.discard(delta.id)
        steps += 1
    return results


def hold_against_reference(entries: list[Entry], results: list[list[int]], tokens: int) -> None:
    bound = reference().bound
    for entry, ids in zip(entries, results, strict=True):
        assert len(ids) == tokens
        step = departure(entry, ids, bound)
        if step is not None:
            print(f"{entry.name}: near tie at step {step}, margin {entry.margins[step]:.3g} < {bound:.3g}")


def test_the_reference_is_of_the_promised_kind() -> None:
    data = reference()
    lengths = [len(entry.prompt_ids) for entry in data.prompts]
    assert len(data.prompts) >= 24 and data.steps == 64
    assert min(lengths) == 1 and max(lengths) >= 600
    assert sum(bool(entry.messages) for entry in data.prompts) >= 6
    assert all(len(entry.ids) == len(entry.margins) == data.steps for entry in data.prompts)
    assert 0 < data.noise < 1e-3
    assert {entry.name for entry in data.quick()} == set(QUICK)


def test_near_ties_are_few_and_named() -> None:
    """Of all steps, exactly these leave the choice to the noise of fp32."""
    assert [(name, step) for name, step, _ in reference().near_ties()] == []


def test_a_departure_at_a_clear_margin_fails() -> None:
    entry = reference().quick()[0]
    wrong = [*entry.ids[:5], entry.ids[5] + 1, *entry.ids[6:]]
    with pytest.raises(AssertionError, match="step 5"):
        departure(entry, wrong, reference().bound)
    assert departure(entry, wrong, bound=entry.margins[5] * 2) == 5
    assert departure(entry, entry.ids, bound=0.0) is None


@pytest.fixture(scope="module")
def plain_engine(smollm2_bundle: Path) -> Iterator[Engine]:
    loaded = engine(smollm2_bundle)
    yield loaded
    loaded.close()


def test_alone(plain_engine: Engine) -> None:
    entries = reference().quick()
    results = [run_staggered(plain_engine, [entry], QUICK_TOKENS, 0)[0] for entry in entries]
    hold_against_reference(entries, results, QUICK_TOKENS)


def test_sixteen_with_staggered_arrivals(plain_engine: Engine) -> None:
    entries = reference().quick() * (BATCH // len(QUICK))
    results = run_staggered(plain_engine, entries, QUICK_TOKENS, every=1)
    hold_against_reference(entries, results, QUICK_TOKENS)


@pytest.mark.parametrize("chunk", CHUNKS)
def test_prefill_in_chunks(smollm2_bundle: Path, chunk: int) -> None:
    entries = reference().quick()
    chunked = engine(smollm2_bundle, chunk)
    try:
        hold_against_reference(entries, run_staggered(chunked, entries, QUICK_TOKENS, 0), QUICK_TOKENS)
    finally:
        chunked.close()


def test_offline(smollm2_bundle: Path) -> None:
    entries = reference().quick()
    with LLM(smollm2_bundle, precision="fp32") as llm:
        outputs = llm.generate([entry.prompt_ids for entry in entries], greedy(QUICK_TOKENS))
    hold_against_reference(entries, [list(output.outputs[0].token_ids) for output in outputs], QUICK_TOKENS)


def test_text_and_messages_become_the_same_ids(smollm2_bundle: Path) -> None:
    bundle = Bundle.open(smollm2_bundle, check="sizes")
    text = TextFrontend(bundle)
    for entry in FULL:
        found = text.render_chat(entry.messages) if entry.messages else text.encode(entry.text)
        assert list(found) == entry.prompt_ids, entry.name
    bundle.close()


def expected_text(bundle: Path, entry: Entry, tokens: int) -> str:
    """What the reference's first `tokens` ids say; a character cut in half at the end is dropped."""
    tokenizer = Tokenizer.from_file(str(bundle / "tokenizer" / "tokenizer.json"))
    return str(tokenizer.decode(entry.ids[:tokens], skip_special_tokens=True)).rstrip("\ufffd")


def check_over_http(bundle: Path, base: str, entries: list[Entry], tokens: int) -> None:
    """All entries at once, each as ids and as text or messages."""
    bound = reference().bound
    client = openai.OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0)
    model = client.models.list().data[0].id
    options: dict[str, Any] = {"max_tokens": tokens, "temperature": 0, "extra_body": {"ignore_eos": True}}

    def ask(entry: Entry) -> list[str]:
        answer = client.completions.create(model=model, prompt=entry.prompt_ids, **options)
        assert answer.usage is not None and answer.usage.completion_tokens == tokens
        if entry.messages:
            reply = client.chat.completions.create(model=model, messages=entry.messages, **options)
            return [answer.choices[0].text, reply.choices[0].message.content or ""]
        plain = client.completions.create(model=model, prompt=entry.text, **options)
        return [answer.choices[0].text, plain.choices[0].text]

    with ThreadPoolExecutor(BATCH) as pool:
        answers = list(pool.map(ask, entries))
    for entry, texts in zip(entries, answers, strict=True):
        smallest = min(entry.margins[:tokens])
        if smallest < bound:
            print(f"{entry.name}: not compared as text, a margin of {smallest:.3g} < {bound:.3g}")
            continue
        expected = expected_text(bundle, entry, tokens)
        assert [text.rstrip("\ufffd") for text in texts] == [expected, expected], entry.name


def test_over_http(smollm2_bundle: Path, tmp_path: Path) -> None:
    with ServerProcess(smollm2_bundle, tmp_path / "log", "--precision", "fp32") as server:
        check_over_http(smollm2_bundle, server.base, reference().quick(), QUICK_TOKENS)


@pytest.mark.slow
@pytest.mark.timeout(3600)
class TestAll:
    """Every prompt, 64 tokens."""

    def test_alone(self, plain_engine: Engine) -> None:
        results = [run_staggered(plain_engine, [entry], TOKENS, 0)[0] for entry in FULL]
        hold_against_reference(FULL, results, TOKENS)

    def test_sixteen_with_staggered_arrivals(self, plain_engine: Engine) -> None:
        hold_against_reference(FULL, run_staggered(plain_engine, FULL, TOKENS, every=3), TOKENS)

    @pytest.mark.parametrize("chunk", CHUNKS)
    def test_prefill_in_chunks(self, smollm2_bundle: Path, chunk: int) -> None:
        chunked = engine(smollm2_bundle, chunk)
        try:
            hold_against_reference(FULL, run_staggered(chunked, FULL, TOKENS, 0), TOKENS)
        finally:
            chunked.close()

    def test_offline(self, smollm2_bundle: Path) -> None:
        with LLM(smollm2_bundle, precision="fp32") as llm:
            outputs = llm.generate([entry.prompt_ids for entry in FULL], greedy(TOKENS))
        hold_against_reference(FULL, [list(output.outputs[0].token_ids) for output in outputs], TOKENS)

    def test_over_http(self, smollm2_bundle: Path, tmp_path: Path) -> None:
        with ServerProcess(smollm2_bundle, tmp_path / "log", "--precision", "fp32") as server:
            check_over_http(smollm2_bundle, server.base, FULL, TOKENS)
