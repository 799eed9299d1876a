"""The CPU executor with a real ONNX graph: right logits, memory only where written, errors that are typed."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest

from ops.errors import BundleDamaged, CacheTooSmall, EngineDied, EngineError, WrongTarget
from ops.sample_columns import Number
from rtcore.bundle import Bundle
from rtcore.config import EngineConfig
from rtcore.decoding.params import SamplingParams
from rtcore.engine import Engine
from rtcore.executor.base import Executor, StepInputs
from rtcore.executor.registry import load_executor
from rtcore.executor.sample_arrays import OUTPUTS, no_rows
from rtcore.request import EngineRequest
from rtcore.scheduler.outcome import Outcome
from tests.rtcore.fakes import advance, drain, tokens_of
from tests.rtcore.handmade import (
    CONTEXT,
    GRAPH,
    TOLERANCE,
    VOCABULARY,
    WEIGHTS,
    dense_logits,
    manifest_of,
    replace_file,
    rewrite,
    write_bundle,
)

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

BLOCK_BYTES = 4 * 16 * 8 * 4


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bundle(tmp_path_factory.mktemp("bundle") / "model")


@pytest.fixture
def bundle(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "model"))


@pytest.fixture
def engine(pristine: Path) -> Iterator[Engine]:
    loaded = Engine.load(Bundle.open(pristine), EngineConfig(cache_bytes=1 << 20, debug_invariants=True))
    yield loaded
    loaded.close()


def load(path: Path, **config: object) -> Executor:
    return load_executor(Bundle.open(path), EngineConfig(**config))  # type: ignore[arg-type]


def prompt(length: int, seed: int = 0) -> list[int]:
    tokens: list[int] = np.random.default_rng(seed).integers(1, VOCABULARY, length).tolist()
    return tokens


def one_sequence(tokens: list[int], blocks: list[int], block_size: int = 16) -> StepInputs:
    """A whole prompt in one step, in given blocks of both groups; logits of every row."""
    positions = np.arange(len(tokens))
    slots = (np.asarray(blocks)[positions // block_size] * block_size + positions % block_size).astype(np.int32)
    table = np.asarray([blocks], np.int32)
    return StepInputs(
        input_ids=np.asarray(tokens, np.int64),
        positions=positions,
        query_start=np.array([0, len(tokens)], np.int32),
        seq_lens=np.array([len(tokens)], np.int32),
        logit_rows=positions,
        block_tables=[table, table],
        slot_mapping=[slots, slots],
        plan=np.array([0, 1, len(tokens), 128, len(tokens), 1], np.int32),
    )


def logits_of(executor: Executor, inputs: StepInputs) -> np.ndarray:
    executor.run(inputs)
    return executor.logits()


def test_logits_are_those_of_dense_attention(pristine: Path) -> None:
    executor = load(pristine, cache_bytes=1 << 20)
    tokens = prompt(40)
    for blocks in ([0, 1, 2], [9, 4, 7]):
        logits = logits_of(executor, one_sequence(tokens, blocks))
        assert logits.dtype == np.float32 and logits.shape == (40, VOCABULARY)
        np.testing.assert_allclose(logits, dense_logits(tokens), atol=TOLERANCE, rtol=0)
    executor.close()


def test_a_step_chooses_what_it_is_told_before(pristine: Path) -> None:
    """The tokens are those that a run of the sample graph chooses from the same logits, and hold for one step."""
    executor = load(pristine, cache_bytes=1 << 20)
    step = one_sequence(prompt(5), [0, 1, 2])
    inputs = no_rows(VOCABULARY)
    inputs.settings = np.array([(0.0, 1, 0, 1, 0, 0), (0.9, 1, 0, 1, 0, 0), (0.9, 1, 0, 1, 0, 0)], np.float32)
    inputs.numbers = np.array([(7, 5 + row, 0, row - 1, -1, -1) for row in range(3)], np.int64)
    inputs.token_start = inputs.bias_start = np.zeros(4, np.int32)
    for _ in range(2):
        executor.foresee(inputs)
        executor.run(step)
        chosen = copy.deepcopy(executor.sample(inputs))
        again = executor.sample(replace(inputs))
        for name in OUTPUTS:
            np.testing.assert_array_equal(getattr(chosen, name), getattr(again, name), err_msg=name)
        assert chosen.ids[0] == executor.logits()[0].argmax() and chosen.top_ids.shape == (3, 1)
        inputs.numbers[:, Number.POSITION] += 1
    executor.put_logits(np.array([0]), np.eye(VOCABULARY, dtype=np.float32)[None, 3])
    assert executor.sample(inputs).ids[0] == 3
    executor.run(step)
    assert executor.sample(inputs).ids[0] == chosen.ids[0]
    executor.close()


@pytest.mark.parametrize("chunk", [1, 7, None])
def test_engine_decodes_what_dense_attention_decodes(pristine: Path, chunk: int | None) -> None:
    config = EngineConfig(cache_bytes=1 << 20, max_prefill_chunk=chunk, max_step_tokens=48, max_sequences=8)
    engine = Engine.load(Bundle.open(pristine), config)
    deltas = {}
    for number in range(6):
        params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
        engine.submit(EngineRequest(f"r{number}", prompt(3 + 11 * number, number), params))
        advance(engine, deltas)
    drain(engine, deltas)
    for number in range(6):
        tokens = prompt(3 + 11 * number, number)
        for token in tokens_of(deltas[f"r{number}"]):
            logits = dense_logits(tokens)[-1]
            assert logits.max() - logits[token] <= 2 * TOLERANCE
            tokens.append(token)
        assert len(tokens) == 3 + 11 * number + 16
    engine.close()


def test_preemption_continues_exactly(pristine: Path) -> None:
    """Six sequences in a cache for three: the tokens are those of a large cache, bit for bit."""
    results = []
    for blocks in (14, 200):
        engine = Engine.load(Bundle.open(pristine), EngineConfig(cache_bytes=blocks * BLOCK_BYTES))
        for number in range(6):
            params = SamplingParams(temperature=1, seed=number, max_tokens=60, ignore_eos=True)
            engine.submit(EngineRequest(f"r{number}", prompt(10, number), params))
        deltas = drain(engine)
        results.append({name: tokens_of(items) for name, items in deltas.items()})
        assert (engine.stats().preemptions > 0) == (blocks == 14)
        engine.close()
    assert results[0] == results[1]


def test_blocks_are_copied_in_every_tensor_of_the_group_only(pristine: Path) -> None:
    executor = load(pristine, cache_bytes=1 << 20)
    tokens = prompt(32)
    executor.run(one_sequence(tokens, [3, 5]))
    executor.copy_blocks(0, np.array([3, 5], np.int32), np.array([8, 9], np.int32))
    inputs = one_sequence([*tokens, 4], [3, 5, 6])
    tail = StepInputs(
        input_ids=inputs.input_ids[-1:],
        positions=inputs.positions[-1:],
        query_start=np.array([0, 1], np.int32),
        seq_lens=inputs.seq_lens,
        logit_rows=np.array([0]),
        block_tables=[np.array([[8, 9, 6]], np.int32), inputs.block_tables[1]],
        slot_mapping=[slots[-1:] for slots in inputs.slot_mapping],
        plan=np.array([1, 0, 1, 128, 1, 1], np.int32),
    )
    np.testing.assert_allclose(logits_of(executor, tail), dense_logits([*tokens, 4])[-1:], atol=TOLERANCE, rtol=0)
    tail = replace(tail, block_tables=[tail.block_tables[0]] * 2)
    assert np.abs(logits_of(executor, tail) - dense_logits([*tokens, 4])[-1:]).max() > 100 * TOLERANCE
    executor.close()


def test_blocks_can_be_saved_lost_and_loaded_elsewhere(pristine: Path) -> None:
    executor = load(pristine, cache_bytes=1 << 20)
    tokens = prompt(32)
    executor.run(one_sequence(tokens, [3, 5]))
    for group in range(2):
        saved = executor.save_blocks(group, np.array([3, 5], np.int32))
        assert sum(array.nbytes for array in saved) == 2 * executor.block_bytes[group]
        for array in executor._groups[group]:
            array[[3, 5]] = 7
        executor.load_blocks(group, np.array([6, 2], np.int32), saved)
    tail = one_sequence([*tokens, 4], [6, 2, 8])
    for name in ("input_ids", "positions"):
        setattr(tail, name, getattr(tail, name)[-1:])
    tail.query_start = np.array([0, 1], np.int32)
    tail = replace(tail, logit_rows=np.array([0]))
    tail.slot_mapping = [slots[-1:] for slots in tail.slot_mapping]
    tail.plan = np.array([1, 0, 1, 128, 1, 1], np.int32)
    np.testing.assert_allclose(logits_of(executor, tail), dense_logits([*tokens, 4])[-1:], atol=TOLERANCE, rtol=0)
    executor.close()


class TestCacheSize:
    def test_bytes_decide_the_blocks(self, pristine: Path) -> None:
        for blocks in (1, 5):
            executor = load(pristine, cache_bytes=(blocks + 1) * BLOCK_BYTES - 1)
            assert executor.num_blocks == [blocks, blocks]
            executor.close()

    def test_too_few_for_one_block_is_refused_with_numbers(self, pristine: Path) -> None:
        with pytest.raises(CacheTooSmall, match=rf"2,047 bytes .*takes {BLOCK_BYTES // 1000},") as caught:
            load(pristine, cache_bytes=BLOCK_BYTES - 1)
        assert caught.value.param == "cache_bytes"

    def test_never_more_than_all_sequences_need(self, pristine: Path) -> None:
        for config in ({}, {"cache_bytes": 1 << 40}):
            executor = load(pristine, max_sequences=3, **config)
            assert executor.num_blocks == [3 * CONTEXT // 16] * 2
            executor.close()

    def test_a_small_cache_limits_the_context_and_says_so(
        self, pristine: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        engine = Engine.load(Bundle.open(pristine), EngineConfig(cache_bytes=2 * BLOCK_BYTES))
        assert engine.context_length == 32
        assert "32 tokens" in caplog.text and str(CONTEXT) in caplog.text
        with pytest.raises(CacheTooSmall):
            engine.submit(EngineRequest("x", prompt(30), SamplingParams(max_tokens=3)))
        engine.close()

    def test_memory_is_taken_where_written_and_given_back(self, bundle: Path) -> None:
        rewrite(bundle, dimensions=msgspec.structs.replace(manifest_of(bundle).dimensions, context_length=1 << 20))
        process = psutil.Process()
        reserved = 4 << 30
        before = process.memory_info().rss
        executor = load(bundle, cache_bytes=reserved)
        assert executor.num_blocks[0] * BLOCK_BYTES > reserved - BLOCK_BYTES
        loaded = process.memory_info().rss - before
        assert loaded < 64 << 20
        blocks = list(range(4096))
        tokens = prompt(16)
        for block in blocks:
            executor.run(one_sequence(tokens, [block]))
        written = process.memory_info().rss - before - loaded
        assert len(blocks) * BLOCK_BYTES * 0.9 < written < len(blocks) * BLOCK_BYTES + (8 << 20)
        kept = executor._memory.arrays[executor._names[0][0]][0].copy()
        executor.release_blocks(0, np.arange(1, 4096, dtype=np.int32))
        executor.release_blocks(1, np.arange(1, 4096, dtype=np.int32))
        assert process.memory_info().rss - before - loaded < 0.1 * written
        assert np.array_equal(executor._memory.arrays[executor._names[0][0]][0], kept)
        executor.close()
        executor.close()
        assert process.memory_info().rss - before - loaded < 8 << 20


class TestFaults:
    def test_a_failing_step_is_typed_and_the_next_one_runs(self, engine: Engine) -> None:
        tokens = prompt(20)
        executor = engine._executor
        with pytest.raises(EngineError, match="failed in ONNX Runtime") as caught:
            executor.run(one_sequence([*tokens, VOCABULARY + 5], [0, 1]))
        assert type(caught.value) is EngineError
        np.testing.assert_allclose(
            logits_of(executor, one_sequence(tokens, [0, 1])), dense_logits(tokens), atol=TOLERANCE, rtol=0
        )

    def test_a_closed_executor_says_so(self, pristine: Path) -> None:
        executor = load(pristine, cache_bytes=1 << 20)
        executor.close()
        with pytest.raises(EngineDied):
            executor.run(one_sequence(prompt(3), [0]))

    def test_an_engine_whose_executor_was_closed_dies(self, engine: Engine) -> None:
        engine.submit(EngineRequest("x", prompt(5), SamplingParams(max_tokens=3)))
        engine._executor.close()
        assert engine.step().outcome is Outcome.FATAL

    @pytest.mark.parametrize("config", [{"target": "cuda"}, {"precision": "int4"}])
    def test_wrong_target_or_precision(self, pristine: Path, config: dict[str, str]) -> None:
        with pytest.raises(WrongTarget):
            load(pristine, **config)

    def test_a_skeleton_is_not_run(self, bundle: Path) -> None:
        rewrite(bundle, skeleton=True)
        with pytest.raises(BundleDamaged, match="ortolan fill"):
            load(bundle)

    def test_a_graph_that_onnx_runtime_refuses(self, bundle: Path) -> None:
        content = (bundle / GRAPH).read_bytes()
        replace_file(bundle, GRAPH, content.replace(b"PagedAttention", b"PagedAttentioX"))
        with pytest.raises(BundleDamaged) as caught:
            load(bundle)
        assert caught.value.param == GRAPH and "PagedAttentioX" in caught.value.why

    def test_weights_too_short_for_the_graph(self, bundle: Path) -> None:
        replace_file(bundle, WEIGHTS, (bundle / WEIGHTS).read_bytes()[:5000])
        with pytest.raises(BundleDamaged):
            load(bundle)

    @pytest.mark.parametrize("field", ["name", "output"])
    def test_a_manifest_that_names_other_caches(self, bundle: Path, field: str) -> None:
        variant = manifest_of(bundle).variants[0]
        caches = (msgspec.structs.replace(variant.cache_tensors[0], **{field: "other"}), *variant.cache_tensors[1:])
        rewrite(bundle, variants=(msgspec.structs.replace(variant, cache_tensors=caches),))
        with pytest.raises(BundleDamaged, match="disagree about") as caught:
            load(bundle)
        assert "other" in str(caught.value)

    def test_a_manifest_without_caches(self, bundle: Path) -> None:
        variant = manifest_of(bundle).variants[0]
        rewrite(bundle, variants=(msgspec.structs.replace(variant, cache_tensors=()),))
        with pytest.raises(BundleDamaged, match="no cache tensors"):
            load(bundle)

    def test_a_cache_type_that_the_cpu_does_not_have(self, bundle: Path) -> None:
        variant = manifest_of(bundle).variants[0]
        caches = (msgspec.structs.replace(variant.cache_tensors[0], dtype="bfloat16"), *variant.cache_tensors[1:])
        rewrite(bundle, variants=(msgspec.structs.replace(variant, cache_tensors=caches),))
        with pytest.raises(WrongTarget, match="bfloat16"):
            load(bundle)
