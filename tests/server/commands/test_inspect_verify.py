"""`ortolan inspect` and `ortolan verify` as a user runs them, on sound and on broken bundles."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rtcore.manifest import GOLDEN_FILE, MANIFEST_FILE
from server.cli import main
from tests.rtcore.handmade import GRAPH, WEIGHTS, golden_record, manifest_of, replace_file, rewrite, write_bundle

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

DAMAGED, FAILED = 4, 5


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bundle(tmp_path_factory.mktemp("bundle") / "model")


@pytest.fixture
def bundle(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "model"))


def ortolan(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command."""
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return code, out, err


class TestInspect:
    def test_a_table_for_people(self, bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
        code, out, err = ortolan(capsys, "inspect", bundle)
        assert (code, err) == (0, "")
        assert "handmade (handmade), 3.584 k parameters" in out
        assert "96 tokens" in out
        assert "fp32 for cpu maps 24.58 kB of weights, cache 128 B a token, default" in " ".join(out.split())
        assert WEIGHTS not in out

    def test_files_on_request(self, bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
        _, out, _ = ortolan(capsys, "inspect", bundle, "--files")
        for entry in manifest_of(bundle).files:
            assert entry.path in out and entry.sha256 in out and f"{entry.size:,}" in out

    def test_json_is_the_manifest(self, bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
        code, out, _ = ortolan(capsys, "inspect", bundle, "--json")
        assert code == 0
        assert json.loads(out) == json.loads((bundle / MANIFEST_FILE).read_text())

    def test_a_skeleton_says_so(self, bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
        files = tuple(entry for entry in manifest_of(bundle).files if entry.path != WEIGHTS)
        rewrite(bundle, skeleton=True, files=files)
        code, out, _ = ortolan(capsys, "inspect", bundle)
        assert code == 0 and "ortolan fill" in out

    def test_a_truncated_file_is_named(self, bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (bundle / WEIGHTS).write_bytes(b"short")
        code, out, err = ortolan(capsys, "inspect", bundle)
        assert code == DAMAGED and out == "" and WEIGHTS in err


class TestVerify:
    def test_a_sound_bundle(self, bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
        code, out, err = ortolan(capsys, "verify", bundle)
        assert (code, err) == (0, "")
        assert "sizes and sha256 are right" in out
        assert "fp32 for cpu: ok; 2 prompts" in out and "6 of 6 decisive positions" in out

    def test_json(self, bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
        code, out, _ = ortolan(capsys, "verify", bundle, "--json", "--precision", "fp32", "--kernels", "portable")
        report = json.loads(out)
        assert code == 0
        assert report["files"] == 5
        assert [prompt["name"] for prompt in report["replays"][0]["prompts"]] == ["short", "long"]

    @pytest.mark.parametrize("name", [GRAPH, WEIGHTS, GOLDEN_FILE, "tokenizer/tokenizer.json", MANIFEST_FILE])
    def test_a_flipped_byte_is_named(self, bundle: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
        content = bytearray((bundle / name).read_bytes())
        content[-2] ^= 1
        (bundle / name).write_bytes(content)
        code, out, err = ortolan(capsys, "verify", bundle)
        assert code == DAMAGED and out == "" and name in err

    def test_what_computes_differently_fails_after_the_report(
        self, bundle: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        replace_file(bundle, GOLDEN_FILE, golden_record(bound=1e-12))
        code, out, err = ortolan(capsys, "verify", bundle)
        assert code == FAILED
        assert "FAILED" in out and "logits differ by" in err

    def test_no_record(self, bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
        rewrite(bundle, golden=False, golden_absent_because="The reference does not fit in memory.")
        code, out, _ = ortolan(capsys, "verify", bundle)
        assert code == 0 and "none. The reference does not fit in memory." in out

    @pytest.mark.parametrize(
        "arguments",
        [("--precision", "int4"), ("--precision", "fp32", "--target", "cuda"), ("--target", "nonsense")],
    )
    def test_what_the_bundle_does_not_hold(
        self, bundle: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
    ) -> None:
        code, _, err = ortolan(capsys, "verify", bundle, *arguments)
        assert code == DAMAGED and "It holds fp32 for cpu" in err

    def test_nothing_there(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        code, _, err = ortolan(capsys, "verify", tmp_path / "nowhere")
        assert code == DAMAGED and "does not exist" in err

    def test_a_wrong_number_of_threads(self, bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
        code, _, err = ortolan(capsys, "verify", bundle, "--threads", "0")
        assert code == 2 and "threads" in err
