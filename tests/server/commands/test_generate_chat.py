"""`ortolan generate` and `ortolan chat`, over a fake executor."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rtcore.llm
from ops.errors import ContextLengthExceeded
from rtcore import SamplingParams
from rtcore.executor.base import StepInputs
from server.cli import main
from server.commands import chat, terminal
from tests.rtcore.test_llm import Rig

Run = Callable[..., int]


class Input(io.TextIOWrapper):
    """Standard input with given bytes."""

    def __init__(self, content: bytes, terminal: bool = False) -> None:
        super().__init__(io.BytesIO(content), encoding="utf-8")
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    """What `LLM(...)` gives; `rig.opened` holds what it was called with."""
    made = Rig(tmp_path)
    made.opened: list[tuple[Any, dict[str, Any]]] = []  # type: ignore[attr-defined]

    def open_model(bundle: Path, **settings: Any) -> rtcore.llm.LLM:
        made.opened.append((bundle, settings))  # type: ignore[attr-defined]
        return made.llm

    monkeypatch.setattr(rtcore.llm, "LLM", open_model)
    return made


@pytest.fixture
def run(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Run:
    def run(*arguments: str, given: bytes | None = None, terminal: bool = False) -> int:
        monkeypatch.setattr("sys.stdin", Input(given or b"", terminal))
        return main([arguments[0], "bundle", *arguments[1:]])

    return run


def expected(rig: Rig, prompt: str, **params: Any) -> str:
    """What the model says, found on a second rig so that the first can be closed by the command."""
    return Rig(rig.folder / "twin").llm.generate(prompt, SamplingParams(**params))[0].outputs[0].text


GREEDY = ("--temperature", "0", "--max-tokens", "6", "--ignore-eos")
SAME = {"temperature": 0.0, "max_tokens": 6, "ignore_eos": True}


def test_one_prompt_is_continued(rig: Rig, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("generate", "the fox", *GREEDY) == 0
    assert capsys.readouterr().out == expected(rig, "the fox", **SAME) + "\n"
    assert rig.executor.closed


@pytest.mark.parametrize("dash", [(), ("-",)])
def test_a_prompt_from_standard_input(
    rig: Rig, run: Run, capsys: pytest.CaptureFixture[str], dash: tuple[str, ...]
) -> None:
    assert run("generate", *dash, *GREEDY, given="é fox\n".encode()) == 0
    assert capsys.readouterr().out == expected(rig, "é fox\n", **SAME) + "\n"


def test_several_prompts_are_numbered(rig: Rig, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("generate", "the", "fox", *GREEDY) == 0
    shown = capsys.readouterr().out
    assert f"[1] the{expected(rig, 'the', **SAME)}\n" in shown
    assert f"[2] fox{expected(rig, 'fox', **SAME)}\n" in shown


def test_json_holds_ids_and_ends(rig: Rig, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("generate", "the", "fox", "--n", "2", "--seed", "1", "--max-tokens", "3", "--json") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["prompt"] for line in lines] == ["the", "fox"]
    assert [[answer["index"] for answer in line["outputs"]] for line in lines] == [[0, 1]] * 2
    assert all(
        len(answer["token_ids"]) <= 3 and answer["finish_reason"] for line in lines for answer in line["outputs"]
    )


def test_flags_reach_the_model(
    rig: Rig, run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[SamplingParams] = []
    requests = rig.llm.frontend.requests

    def watch(ids: list[int], params: SamplingParams, *others: Any) -> Any:
        asked.append(params)
        return requests(ids, params, *others)

    monkeypatch.setattr(rig.llm.frontend, "requests", watch)
    flags = (
        "--top-k 5 --top-p 0.5 --seed 9 --stop x --stop yy --stop-token-id 7 --include-stop --show-special-tokens"
    )
    engine = (
        "--precision int8 --threads 2 --cache-bytes 64MiB --kernels portable --activations float32 "
        "--speculation ngram --max-drafts 3"
    )
    assert run("generate", "the", *GREEDY, *flags.split(), *engine.split()) == 0
    assert asked == [
        SamplingParams(
            **SAME,
            top_k=5,
            top_p=0.5,
            seed=9,
            stop=("x", "yy"),
            stop_token_ids=(7,),
            include_stop_str_in_output=True,
            skip_special_tokens=False,
        )
    ]
    settings = {"precision": "int8", "threads": 2, "kernels": "portable", "check": "full", "cache_bytes": 2**26}
    settings |= {"activations": "float32", "speculation": "ngram", "max_drafts": 3, "draft_bundle": None}
    ((bundle, opened),) = rig.opened  # type: ignore[attr-defined]
    assert bundle == Path("bundle") and {name: opened[name] for name in settings} == settings


@pytest.mark.parametrize(
    ("arguments", "given", "terminal", "said"),
    [
        (("generate", "-", "-"), b"", False, "only once"),
        (("generate",), b"", True, "There is no prompt"),
        (("generate",), b"\xff", False, "not UTF-8"),
        (("generate", "x", "--temperature", "-1"), b"", False, "temperature"),
        (("generate", "the " * 300), b"", False, "context"),
        (("chat",), b"the " * 300, False, "context"),
    ],
)
def test_wrong_use_exits_with_2(
    run: Run,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    given: bytes,
    terminal: bool,
    said: str,
) -> None:
    assert run(*arguments, given=given, terminal=terminal) == 2
    assert said in capsys.readouterr().err


def test_a_piped_chat_remembers_and_resets(rig: Rig, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    talk = b"one\n\ntwo\n/reset\nthree\n/exit\nnever\n"
    assert run("chat", "--system", "be", *GREEDY, given=talk) == 0
    opening = "system: be\n"
    first = expected(rig, f"{opening}user: one\nassistant:", **SAME)
    second = expected(rig, f"{opening}user: one\nassistant: {first}\nuser: two\nassistant:", **SAME)
    third = expected(rig, f"{opening}user: three\nassistant:", **SAME)
    assert capsys.readouterr().out == f"{first}\n{second}\nThe conversation begins anew.\n{third}\n"
    assert rig.executor.closed


def test_piped_input_that_is_not_text_is_said_in_words(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("chat", given=b"\xff\xfe\n") == 2
    assert "UTF-8" in capsys.readouterr().err


def test_help_lists_what_there_is(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("chat", given=b"/help") == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("/help", "/reset", "/exit"))


def test_a_model_without_a_template_says_so_first(rig: Rig, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    from rtcore.text.chat import ChatTemplate

    rig.llm.frontend.chat = ChatTemplate(None)
    assert run("chat", given=b"hello\n") == 2
    assert "generate" in capsys.readouterr().err
    assert rig.executor.runs == 0


def typed(monkeypatch: pytest.MonkeyPatch, *lines: str | BaseException) -> None:
    """Lines typed at the prompt, one of which may be an interrupt."""
    left = [*lines, EOFError()]

    def read(prompt: str) -> str:
        line = left.pop(0)
        if isinstance(line, BaseException):
            raise line
        return line

    monkeypatch.setattr("builtins.input", read)


def test_at_the_terminal_an_error_does_not_end_the_talk(
    rig: Rig, run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(monkeypatch, "the " * 300, "one")
    assert run("chat", *GREEDY, terminal=True) == 0
    shown = capsys.readouterr()
    assert "/reset" in shown.err
    assert expected(rig, "user: one\nassistant:", **SAME) in shown.out


def test_at_the_terminal_an_interrupt_ends_the_answer(
    rig: Rig, run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(inputs: StepInputs) -> Exception | None:
        if rig.executor.runs == 3:
            raise KeyboardInterrupt
        return None

    rig.executor.fault = interrupt
    typed(monkeypatch, "one", "two")
    assert run("chat", *GREEDY, terminal=True) == 0
    said = expected(rig, "user: one\nassistant:", **SAME | {"max_tokens": 2})
    second = expected(rig, f"user: one\nassistant: {said}\nuser: two\nassistant:", **SAME)
    assert capsys.readouterr().out.endswith(f"\n{said}\n{second}\n\n")


def test_an_interrupt_at_the_prompt_leaves(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    typed(monkeypatch, KeyboardInterrupt())
    assert run("chat", terminal=True) == 130


def test_a_question_that_does_not_fit_is_not_kept(rig: Rig) -> None:
    conversation = chat.Conversation(rig.llm, SamplingParams(max_tokens=4), None)
    with pytest.raises(ContextLengthExceeded):
        list(conversation.answer("the " * 300))
    assert conversation.messages == []


class Screen(io.StringIO):
    encoding = "latin-1"  # type: ignore[assignment]

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@pytest.mark.parametrize(("is_terminal", "shown"), [(True, "a\n\t?[31m?"), (False, "a\n\t\x1b[31m?")])
def test_a_model_cannot_drive_the_terminal(is_terminal: bool, shown: str) -> None:
    screen = Screen(is_terminal)
    terminal.show("a\n\t\x1b[31m🙂", screen)
    assert screen.getvalue() == shown
