"""``ortolan export`` and ``ortolan fill`` as a user runs them, and every way in which they may fail."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ops.errors import NotABundle
from rtcore.bundle import Bundle
from server.cli import main
from tests.export import gguf_files
from tests.export.files import llama_config, write_llama

pytestmark = [pytest.mark.export, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
ALL = ("--precision", "fp32,int8,int4")


def run(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def content(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("source") / "tiny-llama", llama_config(), shards=2, dtype="bfloat16")


@pytest.fixture(scope="module")
def bundle(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("bundles") / "llama"
    assert run("export", llama, "--out", target, *ALL) == 0
    return target


def test_a_folder_becomes_a_bundle(bundle: Path) -> None:
    manifest = Bundle.open(bundle).manifest
    assert (manifest.name, manifest.family, manifest.format) == ("tiny-llama", "Llama", 1)
    assert [variant.precision for variant in manifest.variants] == ["fp32", "int8", "int4"]
    assert manifest.default_precision == "int8"
    assert manifest.source.kind == "huggingface" and len(manifest.source.sha256) == 64
    assert not manifest.golden and "--verify" in manifest.golden_absent_because
    assert {"torch", "transformers", "onnx-ir"} <= manifest.tools.keys()
    assert manifest.dimensions.parameters == sum(
        np.prod(shape) for shape in ((160, 64), (160, 64), (64,), *[(64, 64), (32, 64), (32, 64), (64, 64)] * 2,
        *[(96, 64), (96, 64), (64, 96), (64,), (64,)] * 2)
    )  # fmt: skip
    # Norms and the rotary table are needed by all precisions and stored by the first.
    assert all("weights/fp32/plain/00000.bin" in variant.weights for variant in manifest.variants)


def test_the_same_export_gives_the_same_bytes(llama: Path, bundle: Path, tmp_path: Path) -> None:
    assert run("export", llama, "--out", tmp_path / "again", *ALL) == 0
    assert content(tmp_path / "again") == content(bundle)
    assert Bundle.open(tmp_path / "again").manifest.version == Bundle.open(bundle).manifest.version


FILL_WITHOUT_TORCH = """
import sys
for name in ("torch", "transformers", "optimum", "onnx", "onnx_ir", "onnxscript", "triton", "safetensors"):
    sys.modules[name] = None
from server.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_filled_skeleton_equals_a_direct_export(llama: Path, bundle: Path, tmp_path: Path) -> None:
    source = tmp_path / "bare"
    source.mkdir()
    (source / "config.json").write_bytes((llama / "config.json").read_bytes())
    skeleton = tmp_path / "skeleton"
    assert run("export", source, "--out", skeleton, *ALL, "--skeleton", "--name", "tiny-llama") == 0
    manifest = Bundle.open(skeleton).manifest
    assert manifest.skeleton and not any(entry.path.startswith("weights/") for entry in manifest.files)
    done = subprocess.run(
        [sys.executable, "-c", FILL_WITHOUT_TORCH, "fill", str(skeleton), "--weights", str(llama)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert content(skeleton) == content(bundle)
    assert Bundle.open(skeleton).manifest.version == Bundle.open(bundle).manifest.version
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert run("fill", skeleton, "--weights", llama) == 2


def test_random_weights_follow_from_the_seed(llama: Path, tmp_path: Path) -> None:
    source = tmp_path / "bare"
    source.mkdir()
    (source / "config.json").write_bytes((llama / "config.json").read_bytes())
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        assert run("export", source, "--out", tmp_path / name, "--weights", f"random:{seed}") == 0
    assert content(tmp_path / "a") == content(tmp_path / "b") != content(tmp_path / "c")
    assert run("export", source, "--out", tmp_path / "s", "--skeleton") == 0
    assert run("fill", tmp_path / "s", "--weights", "random:3", "--out", tmp_path / "d") == 0
    assert content(tmp_path / "d") == content(tmp_path / "a")
    assert Bundle.open(tmp_path / "s").manifest.skeleton


def test_a_gguf_file_becomes_a_bundle_with_its_text(tmp_path: Path) -> None:
    source = gguf_files.write_family(tmp_path / "tiny.Q8_0.gguf", "llama", "Q8_0")
    assert run("export", source, "--out", tmp_path / "bundle", "--precision", "int8", "--context", 100) == 0
    manifest = Bundle.open(tmp_path / "bundle").manifest
    assert (manifest.name, manifest.source.kind) == ("tiny.Q8_0", "gguf")
    assert manifest.dimensions.context_length == 100
    assert (manifest.text.bos_id, manifest.text.stop_ids, manifest.text.add_bos) == (1, (2,), False)
    assert manifest.text.chat_template == "tokenizer/chat_template.jinja"


def test_a_verified_export_records_and_replays_golden_logits(llama: Path, tmp_path: Path, capsys: Any) -> None:
    assert run("export", llama, "--out", tmp_path / "bundle", "--precision", "fp32", "--verify") == 0
    assert Bundle.open(tmp_path / "bundle").manifest.golden
    assert "fp32 for cpu: logits within" in capsys.readouterr().err
    assert run("verify", tmp_path / "bundle") == 0


def _remove_a_shard(folder: Path) -> None:
    (folder / "model-00002-of-00002.safetensors").unlink()


def _truncate_a_shard(folder: Path) -> None:
    with (folder / "model-00001-of-00002.safetensors").open("r+b") as file:
        file.truncate(4000)


def _corrupt_a_header(folder: Path) -> None:
    with (folder / "model-00001-of-00002.safetensors").open("r+b") as file:
        file.seek(8)
        file.write(b"\xff\xff")


def _config(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


def _break_the_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"model": {"type": "Nonsense"}}')


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_remove_a_shard, "model-00002-of-00002.safetensors"),
        (_truncate_a_shard, "truncated"),
        (_corrupt_a_header, "not valid JSON"),
        (_config(model_type="bloom"), "'bloom'"),
        (_config(model_type="unheard_of"), "'unheard_of'"),
        (_config(hidden_size=128), "shape"),
        (_config(num_hidden_layers=3), "model.layers.2"),
        (_config(num_hidden_layers="many"), "config.json"),
        (_config(hidden_size=None), "config.json"),
        (_config(vision_config={"depth": 2}), "images"),
        (_config(quantization_config={"quant_method": "awq"}), "AWQ"),
        (_config(architectures=["LlamaForSequenceClassification"]), "text-classification"),
        (_break_the_tokenizer, "tokenizer.json"),
    ],
)
def test_a_bad_checkpoint_is_named_and_leaves_nothing(
    tmp_path: Path, damage: Callable[[Path], None], said: str, capsys: Any
) -> None:
    source = write_llama(tmp_path / "source", llama_config(), shards=2)
    damage(source)
    assert run("export", source, "--out", tmp_path / "out" / "bundle") == 4
    shown = capsys.readouterr().err
    assert said in shown and "Traceback" not in shown
    assert list((tmp_path / "out").iterdir()) == []


def test_a_skeleton_of_a_gguf_file_keeps_its_text(tmp_path: Path) -> None:
    source = gguf_files.write_family(tmp_path / "tiny.Q8_0.gguf", "llama", "Q8_0")
    assert run("export", source, "--out", tmp_path / "bundle", "--precision", "int8") == 0
    assert run("export", source, "--out", tmp_path / "filled", "--precision", "int8", "--skeleton") == 0
    assert run("fill", tmp_path / "filled", "--weights", source) == 0
    assert content(tmp_path / "filled") == content(tmp_path / "bundle")


def test_a_corrupt_gguf_is_named_and_leaves_nothing(tmp_path: Path, capsys: Any) -> None:
    source = gguf_files.write_family(tmp_path / "tiny.gguf", "llama")
    content = source.read_bytes()
    for size in (3, 100, 5000, len(content) - 1):
        source.write_bytes(content[:size])
        assert run("export", source, "--out", tmp_path / "out" / "bundle") == 4
        shown = capsys.readouterr().err
        assert "tiny.gguf" in shown and "Traceback" not in shown
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("--precision", "int3"),
        ("--precision", ""),
        ("--precision", "int8,int8"),
        ("--default-precision", "fp32"),
        ("--weights", "random"),
        ("--weights", "random:1", "--skeleton"),
        ("--verify", "--skeleton"),
        ("--context", "0"),
        ("--context", "65"),
        ("--group", "48"),
        ("--name", "\udcff"),
    ],
)
def test_wrong_arguments_exit_with_two(
    llama: Path, tmp_path: Path, arguments: tuple[str, ...], capsys: Any
) -> None:
    try:
        code = run("export", llama, "--out", tmp_path / "out" / "bundle", *arguments)
    except SystemExit as left:
        code = int(left.code or 0)
    assert code == 2
    assert "Traceback" not in capsys.readouterr().err
    assert not (tmp_path / "out").exists() or list((tmp_path / "out").iterdir()) == []


def test_without_the_extra_it_says_what_to_install(llama: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FILL_WITHOUT_TORCH, "export", str(llama), "--out", str(tmp_path / "bundle")],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 3
    assert "ortolan[export]" in done.stderr and "torch" in done.stderr and "Traceback" not in done.stderr


def test_a_full_disk_ends_the_export_with_what_is_needed(llama: Path, tmp_path: Path, capsys: Any) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        code = run("export", llama, "--out", tmp_path / "out" / "bundle", "--precision", "fp32")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    said = capsys.readouterr().err
    assert code == 6
    assert "is full" in said and "The bundle needs" in said and "Traceback" not in said
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.slow
def test_a_killed_export_leaves_no_bundle_and_the_next_one_works(llama: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "bare", tmp_path / "out"
    source.mkdir()
    config = llama_config(hidden_size=1024, vocab_size=100_000, head_dim=256, intermediate_size=1024)
    (source / "config.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "server.cli", "export", str(source), "--out", str(out / "bundle")]
    child = subprocess.Popen([*command, "--precision", "fp32", "--weights", "random:1"], cwd=ROOT)
    while child.poll() is None and not list(out.glob(".bundle.partial-*/weights/fp32/plain/*.bin")):
        time.sleep(0.01)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    (left,) = out.glob(".bundle.partial-*")
    for path in (out / "bundle", left):
        with pytest.raises(NotABundle):
            Bundle.open(path)
    assert run("export", llama, "--out", out / "bundle") == 0
    Bundle.open(out / "bundle")
    assert [path.name for path in out.iterdir()] == ["bundle"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("dtype", "precisions"), [("bfloat16", "fp32"), ("float32", "int8,int4")])
def test_a_billion_parameters_fit_in_one_and_a_half_gigabytes(tmp_path: Path, dtype: str, precisions: str) -> None:
    """Peak anonymous memory, sampled; mapped files do not count, for the system takes them back at will."""
    sizes = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "vocab_size": 128_256}
    heads = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "tie_word_embeddings": True}
    config = llama_config(**sizes, **heads, max_position_embeddings=8192)
    source = write_llama(tmp_path / "source", config, shards=4, dtype=dtype)
    command = [sys.executable, "-m", "server.cli", "export", str(source), "--out", str(tmp_path / "bundle")]
    child = subprocess.Popen([*command, "--precision", precisions, "--asymmetric"], cwd=ROOT)
    peak, start = 0, time.monotonic()
    while child.poll() is None:
        peak = max(peak, _anonymous_bytes(child.pid))
        time.sleep(0.01)
    print(f"{dtype} to {precisions}: {peak / 1e6:.0f} MB at most, {time.monotonic() - start:.0f} s")
    assert child.returncode == 0
    assert 100e6 < peak <= 1.5e9


def _anonymous_bytes(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))
