"""``ortolan bench perplexity``: the likelihood is that of the logits, over the windows that it says."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from rtcore.bundle import Bundle
from rtcore.config import EngineConfig
from rtcore.executor.registry import load_executor
from rtcore.verify import TeacherForced
from server.bench import likelihood
from server.bench.likelihood import Likelihood, table
from server.cli import main

TEXT = "It is easy to be wrong about a text that nobody has read. " * 8


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text(TEXT)
    return file


def test_losses_are_minus_log_softmax() -> None:
    logits = np.array([[0.0, math.log(3.0)], [1000.0, 0.0]], np.float32)
    found = likelihood._losses(logits, np.array([1, 0]))
    assert found == pytest.approx([-math.log(0.75), 0.0])


def test_every_token_but_the_first_of_a_window_is_scored(
    tiny_bundle: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(tiny_bundle), "--text", str(text), "--context", "100", "--windows", "2", "--json"]
    assert main(["bench", "perplexity", *arguments]) == 0
    found = {item["precision"]: item for item in json.loads(capsys.readouterr().out)}
    assert set(found) == {"fp32", "int8", "int4"}
    for item in found.values():
        assert item["scored"] == 198 and len(item["window_nll"]) == 2
        assert item["perplexity"] == pytest.approx(math.exp(item["nll"]))
    assert (
        abs(found["int8"]["nll"] - found["fp32"]["nll"]) <= abs(found["int4"]["nll"] - found["fp32"]["nll"]) + 0.02
    )
    # The same from logits that are all kept: the windows in which they come change nothing.
    with Bundle.open(tiny_bundle, check="sizes") as bundle:
        tokenizer = likelihood.Tokenizer.open(bundle.file("tokenizer/tokenizer.json"), bundle.manifest.text)
        add_bos = bundle.manifest.text.add_bos
        ids = likelihood._windows(tokenizer, TEXT, 100, 1, add_bos=add_bos)[0]
        executor = load_executor(bundle, EngineConfig(precision="fp32", max_sequences=1))
    logits = TeacherForced(executor, 100).run(ids, list(range(99))).astype(np.float64)
    executor.close()
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(99), ids[1:]]
    assert found["fp32"]["window_nll"][0] == pytest.approx(losses.mean(), rel=1e-4)


@pytest.mark.parametrize(
    "arguments",
    [["--context", "1"], ["--windows", "0"], ["--context", "511"], ["--context", "9999"], ["--precision", "fp7"]],
)
def test_what_cannot_be_measured_is_refused(
    tiny_bundle: Path, text: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    text.write_text("short")
    assert main(["bench", "perplexity", str(tiny_bundle), "--text", str(text), *arguments]) != 0
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err and "Traceback" not in shown.err


def test_a_text_that_is_none_is_refused(
    tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    for name in ("bytes", "absent"):
        assert main(["bench", "perplexity", str(tiny_bundle), "--text", str(tmp_path / name)]) != 0
        assert "cannot be read" in capsys.readouterr().err


def test_the_table_compares_with_fp32() -> None:
    items = [
        Likelihood("a", "int8", {"bits": 8, "group": 32}, 8, 7, [2.0], 2.0, 11.0),
        Likelihood("b", "fp32", {}, 8, 7, [2.0], 2.0, 10.0),
    ]
    shown = table(items)
    assert "+10.00%" in shown and "bits 8, group 32" in shown and "change against fp32" in shown
    assert "change" not in table(items[:1])
