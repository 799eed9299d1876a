"""verify: a sound bundle passes, and what computes differently fails with numbers."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest

from ops.errors import BundleDamaged, CacheTooSmall, VerificationFailed, WrongTarget
from rtcore import golden
from rtcore.bundle import Bundle
from rtcore.config import Activations, EngineConfig
from rtcore.executor.registry import load_executor
from rtcore.manifest import GOLDEN_FILE
from rtcore.verify import TeacherForced, VerifyReport, verify
from tests.rtcore.handmade import (
    TOLERANCE,
    VOCABULARY,
    WEIGHTS,
    dense_logits,
    golden_record,
    manifest_of,
    replace_file,
    rewrite,
    write_bundle,
)

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

CONFIG = EngineConfig(cache_bytes=1 << 20)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bundle(tmp_path_factory.mktemp("bundle") / "model")


@pytest.fixture
def bundle(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "model"))


def with_golden(bundle: Path, change) -> None:  # type: ignore[no-untyped-def]
    """Rewrite golden.json with `change` applied to the prompts of fp32."""
    record = golden.decode(golden_record())
    precision = record.precisions["fp32"]
    prompts = [change(prompt) for prompt in precision.prompts]
    changed = msgspec.structs.replace(precision, prompts=prompts)
    replace_file(bundle, GOLDEN_FILE, golden.encode(msgspec.structs.replace(record, precisions={"fp32": changed})))


def failing(report: VerifyReport) -> VerificationFailed:
    assert not report.ok
    with pytest.raises(VerificationFailed) as caught:
        report.require()
    return caught.value


def test_a_sound_bundle_passes(bundle: Path) -> None:
    report = verify(bundle, CONFIG)
    assert report.ok and report.files == 5
    report.require()
    (replay,) = report.replays
    assert [prompt.name for prompt in replay.prompts] == ["short", "long"]
    assert 0 < replay.deviation <= TOLERANCE
    assert all(prompt.decisive == 3 for prompt in replay.prompts)


def test_other_weights_fail_although_every_hash_is_right(bundle: Path) -> None:
    content = np.frombuffer((bundle / WEIGHTS).read_bytes(), np.float32).copy()
    content[:512] += 0.01
    replace_file(bundle, WEIGHTS, content.tobytes())
    error = failing(verify(bundle, CONFIG))
    assert "logits differ by" in error.why and "fp32" in error.what


def test_a_logit_just_out_of_bounds_fails(bundle: Path) -> None:
    def shift(prompt: golden.GoldenPrompt) -> golden.GoldenPrompt:
        logits = [list(row) for row in prompt.top_logits]
        logits[-1][3] += 3 * TOLERANCE
        return msgspec.structs.replace(prompt, top_logits=logits)

    with_golden(bundle, shift)
    report = verify(bundle, CONFIG)
    assert failing(report)
    assert 2 * TOLERANCE <= report.replays[0].deviation <= 4 * TOLERANCE


@pytest.mark.parametrize(("served", "replays"), [("int8", [False, True]), ("float32", [True])])
def test_a_record_with_an_exact_bound_is_replayed_with_exact_activations_too(
    bundle: Path, served: Activations, replays: list[bool]
) -> None:
    record = golden.decode(golden_record()).precisions["fp32"]
    impossible = msgspec.structs.replace(record, exact_bound=TOLERANCE * 1e-9)
    replace_file(bundle, GOLDEN_FILE, golden.encode(golden.Golden({"fp32": impossible})))
    report = verify(bundle, msgspec.structs.replace(CONFIG, activations=served))
    assert [replay.exact for replay in report.replays] == replays
    assert [replay.ok for replay in report.replays] == [not exact for exact in replays]
    assert "exact activations" in failing(report).what


def test_wrong_greedy_tokens_fail(bundle: Path) -> None:
    def other(prompt: golden.GoldenPrompt) -> golden.GoldenPrompt:
        return msgspec.structs.replace(prompt, greedy=[(prompt.greedy[0] + 1) % VOCABULARY])

    with_golden(bundle, other)
    assert "short" in failing(verify(bundle, CONFIG)).why


@pytest.mark.parametrize(
    ("changes", "because"),
    [({"golden": False, "golden_absent_because": "Too large."}, "Too large."), ({"skeleton": True}, "skeleton")],
)
def test_without_a_record_it_says_why_nothing_was_replayed(
    bundle: Path, changes: dict[str, object], because: str
) -> None:
    rewrite(bundle, **changes)
    report = verify(bundle, CONFIG)
    assert report.ok and not report.replays and because in report.replay_absent_because


def test_a_precision_without_a_record(bundle: Path) -> None:
    variant = msgspec.structs.replace(manifest_of(bundle).variants[0], precision="int8")
    rewrite(bundle, variants=(variant,), default_precision="int8")
    assert "int8" in verify(bundle, CONFIG).replay_absent_because


def test_a_precision_that_is_not_there(bundle: Path) -> None:
    with pytest.raises(WrongTarget):
        verify(bundle, msgspec.structs.replace(CONFIG, precision="int4"))


@pytest.mark.parametrize("content", [b"{", b"{}", golden_record().replace(b'"token_ids":[', b'"token_ids":[99,')])
def test_a_damaged_record(bundle: Path, content: bytes) -> None:
    replace_file(bundle, GOLDEN_FILE, content)
    with pytest.raises(BundleDamaged) as caught:
        verify(bundle, CONFIG)
    assert caught.value.param == GOLDEN_FILE


def test_a_cache_too_small_for_the_prompts(bundle: Path) -> None:
    with pytest.raises(CacheTooSmall, match="longest golden prompt has 84"):
        verify(bundle, EngineConfig(cache_bytes=10_000))


def test_teacher_forcing_gives_any_positions_in_any_order(bundle: Path) -> None:
    executor = load_executor(Bundle.open(bundle), CONFIG)
    tokens = np.random.default_rng(8).integers(0, VOCABULARY, 90).tolist()
    positions = [89, 0, 63, 64, 88, 5]
    logits = TeacherForced(executor, 90).run(tokens, positions)
    np.testing.assert_allclose(logits, dense_logits(tokens)[positions], atol=TOLERANCE, rtol=0)
    executor.close()
