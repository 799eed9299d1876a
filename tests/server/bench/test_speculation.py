"""``ortolan bench speculation`` and ``bench grammar`` on a tiny bundle: they run, and their figures agree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from server.bench import grammar, speculation
from server.cli import main


def test_speculation_as_json(
    tiny_bundle: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speculation, "REPEATING", ("a b c d a b c d a b", "x y z x y z"))
    monkeypatch.setattr(speculation, "FREE", ("the rain in Spain",))
    monkeypatch.setattr(speculation, "TOKENS", 12)
    assert main(["bench", "speculation", str(tiny_bundle), "--rounds", "2", "--json"]) == 0
    repeating, free = json.loads(capsys.readouterr().out)
    assert (repeating["texts"], free["texts"]) == ("repeating", "free")
    for figures in (repeating, free):
        assert figures["same"] == figures["prompts"]
        assert 0 < figures["lowest"] <= figures["speedup"] <= figures["highest"] or figures["prompts"] > 1
        assert 0 <= figures["accepted"] <= 1
        assert figures["without_ms"] > 0 and figures["with_ms"] > 0


def test_grammar_as_json_and_as_a_table(
    tiny_bundle: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar, "TOKENS", 8)
    monkeypatch.setattr(grammar, "SEQUENCES", (1, 2))
    assert main(["bench", "grammar", str(tiny_bundle), "--rounds", "1", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert [(figure["grammar"], figure["sequences"]) for figure in figures] == [
        (name, count) for name in grammar.GRAMMARS for count in (1, 2)
    ]
    for figure in figures:
        assert figure["overhead"] == pytest.approx(figure["with_ms"] / figure["without_ms"] - 1)
    monkeypatch.setattr(grammar, "SEQUENCES", (1,))
    assert main(["bench", "grammar", str(tiny_bundle), "--rounds", "1"]) == 0
    assert "The median overhead is" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["speculation", "--rounds", "0"],
        ["speculation", "--speculation", "nobody"],
        ["speculation", "--speculation", "draft"],
        ["speculation", "--max-drafts", "0"],
        ["grammar", "--rounds", "0"],
        ["grammar", "--precision", "fp7"],
    ],
    ids=" ".join,
)
def test_bad_arguments_are_refused_without_a_traceback(
    tiny_bundle: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert main(["bench", arguments[0], str(tiny_bundle), *arguments[1:]]) != 0
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err and "Traceback" not in shown.err
