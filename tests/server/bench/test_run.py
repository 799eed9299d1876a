"""``ortolan bench run`` on a tiny bundle: it runs, and its figures agree with each other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ops.errors import ConfigError
from server.cli import main

RATES = ("prefill", "decode, 1 ", "decode, 8 ", "decode, 16 ")
OTHERS = ("first token", "load", "memory, PSS", "memory, peak RSS")


def test_json_is_consistent(tiny_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "run", str(tiny_bundle), "--precision", "int8", "--rounds", "2", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["precision"] == "int8" and report["rounds"] == 2
    assert report["sizes"]["prefill"] < 512 and report["sizes"]["prompt"] == 128
    names = [figure["name"] for figure in report["figures"]]
    assert len(names) == len(RATES + OTHERS)
    assert all(name.startswith(start) for name, start in zip(names, RATES + OTHERS, strict=True))
    for figure in report["figures"]:
        assert figure["rounds"] == 2
        assert 0 < figure["low"] <= figure["median"] <= figure["high"]
        assert figure["floor"] > 0 and figure["floor_because"]
        ratio = figure["median"] / figure["floor"]
        expected = ratio if figure["unit"] == "tokens/s" else 1 / ratio
        assert figure["share_of_floor"] == pytest.approx(expected)


def test_table_names_every_figure(tiny_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "run", str(tiny_bundle), "--rounds", "1", "--threads", "1"]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n{start}" in shown for start in RATES + OTHERS)
    assert "1 threads" in shown and "GB/s" in shown


@pytest.mark.parametrize("arguments", [["--rounds", "0"], ["--threads", "0"], ["--precision", "fp7"]])
def test_bad_arguments_are_refused_without_a_traceback(
    tiny_bundle: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert main(["bench", "run", str(tiny_bundle), *arguments]) != 0
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err and "Traceback" not in shown.err


def test_sizes_are_cut_to_the_context() -> None:
    from server.bench.sizes import Sizes

    assert Sizes.within(8192) == Sizes(prefill=512, prompt=128, steps=64)
    assert Sizes.within(512).prefill == 511
    with pytest.raises(ConfigError):
        Sizes.within(40)
