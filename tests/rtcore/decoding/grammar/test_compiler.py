"""Compiling beside the engine: cache, bounds, and what hostile specifications come to."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from ops.errors import InvalidRequest, Overloaded, ResourceError
from rtcore.decoding.grammar import check_process
from rtcore.decoding.grammar.check_process import CheckProcess
from rtcore.decoding.grammar.compiler import Grammar, GrammarCompiler
from rtcore.decoding.grammar.source import GrammarError
from rtcore.decoding.grammar.spec import StructuredOutputs
from rtcore.decoding.grammar.vocabulary import Encode, GrammarVocabulary
from tests.rtcore.decoding.grammar.hostile import REFUSED, SERVED
from tests.rtcore.decoding.grammar.words import STOP, VOCAB_SIZE, load_words

SECONDS = 1.0


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    made = GrammarCompiler(load_words, seconds=SECONDS)
    yield made
    made.close()


def result(compiler: GrammarCompiler, **spec: Any) -> Any:
    return compiler.compile(StructuredOutputs(**spec)).result(30)


def stop(pid: int) -> None:
    """Stop a process, and wait until it has: of several threads one may still answer in the meantime."""
    os.kill(pid, signal.SIGSTOP)
    while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
        time.sleep(0.001)


def test_equal_specifications_are_compiled_once(compiler: GrammarCompiler) -> None:
    before = compiler.compiled
    first = compiler.compile(StructuredOutputs(regex="once"))
    assert compiler.compile(StructuredOutputs(regex="once", field="guided_regex")) is first
    first.result(30)
    assert compiler.compile(StructuredOutputs(regex="once")) is first
    assert compiler.compiled == before + 1


def test_refusals_are_kept_too(compiler: GrammarCompiler) -> None:
    before = compiler.compiled
    for _ in range(2):
        with pytest.raises(GrammarError):
            result(compiler, regex="((")
    assert compiler.compiled == before + 1


def test_each_sequence_gets_a_state_of_its_own(compiler: GrammarCompiler) -> None:
    spec = StructuredOutputs(choice=["ab", "ac"])
    grammar = compiler.compile(spec).result(30)
    first, second = (grammar.start(spec, frozenset({STOP}), VOCAB_SIZE) for _ in range(2))
    first.accept([3 + ord("a") - 32, 3 + ord("b") - 32])
    assert second.accepted == 0
    assert second.valid([3 + ord("a") - 32, 3 + ord("c") - 32]) == 2


def test_the_oldest_go_when_there_are_too_many() -> None:
    compiler = GrammarCompiler(load_words, max_grammars=2)
    try:
        for text in ("a", "b"):
            result(compiler, regex=text)
        result(compiler, regex="a")
        result(compiler, regex="c")
        before = compiler.compiled
        result(compiler, regex="a")
        assert compiler.compiled == before, "the one that was asked for last went"
        result(compiler, regex="b")
        assert compiler.compiled == before + 1
        assert len(compiler) <= 2
    finally:
        compiler.close()


def test_the_oldest_go_when_they_are_too_large() -> None:
    compiler = GrammarCompiler(load_words, max_bytes=1)
    try:
        for text in ("a", "b", "c"):
            result(compiler, regex=text * 100)
        compiler.compile(StructuredOutputs(regex="d")).result(30)
        assert len(compiler) == 1
    finally:
        compiler.close()


def test_a_vocabulary_that_cannot_be_read_is_tried_again() -> None:
    calls = []

    def load() -> tuple[GrammarVocabulary, Encode]:
        calls.append(None)
        if len(calls) == 1:
            raise ResourceError("no")
        return load_words()

    compiler = GrammarCompiler(load)
    try:
        with pytest.raises(ResourceError):
            result(compiler, regex="a")
        assert result(compiler, regex="a").size > 0
    finally:
        compiler.close()


def test_no_more_are_compiled_at_once_than_may(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = GrammarCompiler(load_words)
    release = threading.Event()
    monkeypatch.setattr(compiler, "_compile", lambda kind, source: release.wait(30))
    try:
        for number in range(64):
            compiler.compile(StructuredOutputs(regex=f"a{number}"))
        with pytest.raises(Overloaded):
            compiler.compile(StructuredOutputs(regex="one more"))
        compiler.compile(StructuredOutputs(regex="a3"))
    finally:
        release.set()
        compiler.close()


def test_one_tenants_many_grammars_do_not_keep_others_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = GrammarCompiler(load_words)
    release = threading.Event()
    order: list[str] = []
    monkeypatch.setattr(compiler, "_compile", lambda kind, source: release.wait(30) and order.append(source))
    try:
        for number in range(64):
            last = compiler.compile(StructuredOutputs(regex=f"a{number}"), "many")
        with pytest.raises(Overloaded):
            compiler.compile(StructuredOutputs(regex="b"), "many")
        few = compiler.compile(StructuredOutputs(regex="b"), "few")
        assert compiler.compile(StructuredOutputs(regex="a63"), "few") is last, "another's that waits already"
        release.set()
        few.result(30)
        last.result(30)
        # Two were begun before, and two threads go on at once.
        assert order.index("b") < 6 and order.index("a63") < 8
        assert len(order) == len(set(order)), "one was compiled twice"
    finally:
        release.set()
        compiler.close()


def test_what_is_being_compiled_is_not_begun_again_for_another_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = GrammarCompiler(load_words)
    begin, release = threading.Event(), threading.Event()
    begun: list[str] = []

    def compile_later(kind: str, source: str) -> Grammar:
        begun.append(source)
        begin.set()
        release.wait(30)
        return Grammar(None, 1)

    monkeypatch.setattr(compiler, "_compile", compile_later)
    spec = StructuredOutputs(regex="shared")
    try:
        first = compiler.compile(spec, "first")
        assert begin.wait(30)
        assert compiler.compile(spec, "second") is first
        # The second thread is free, so this comes after what it made of the same specification.
        later = compiler.compile(StructuredOutputs(regex="later"), "second")
        for _ in range(2):
            compiler.leave(spec, first)
        assert not first.cancelled(), "it is under way"
        release.set()
        later.result(30)
        assert first.result(30).size == 1 and begun == ["shared", "later"]
    finally:
        release.set()
        compiler.close()


def test_what_nobody_waits_for_any_longer_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = GrammarCompiler(load_words)
    release = threading.Event()
    begun: list[str] = []

    def compile_later(kind: str, source: str) -> Grammar:
        begun.append(source)
        release.wait(30)
        return Grammar(None, 1)

    monkeypatch.setattr(compiler, "_compile", compile_later)
    left, kept = StructuredOutputs(regex="left"), StructuredOutputs(regex="kept")
    try:
        for number in range(2):
            compiler.compile(StructuredOutputs(regex=f"first{number}"))
        futures = [compiler.compile(spec) for spec in (left, kept, left, kept)]
        compiler.leave(left, futures[0])
        compiler.leave(kept, futures[1])
        assert not futures[0].cancelled(), "one still waits"
        compiler.leave(left, futures[0])
        assert futures[0].cancelled()
        again = compiler.compile(StructuredOutputs(regex="again"))
        release.set()
        again.result(30)
        futures[1].result(30)
        assert "left" not in begun and begun.count("kept") == 1
        assert compiler.compile(left) is not futures[0]
    finally:
        release.set()
        compiler.close()


def test_closing_leaves_no_process_behind() -> None:
    compiler = GrammarCompiler(load_words)
    result(compiler, regex="a")
    pids = [checker.pid for checker in compiler._checkers]
    compiler.close()
    compiler.close()
    for pid in pids:
        assert pid is not None
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize("name", REFUSED)
def test_hostile_specifications_are_refused_in_time(compiler: GrammarCompiler, name: str) -> None:
    began = time.monotonic()
    with pytest.raises((GrammarError, InvalidRequest)) as caught:
        result(compiler, **REFUSED[name])
    assert str(caught.value)
    # The bound is the check's own and a process to start anew, many times over; without one some take minutes.
    assert time.monotonic() - began < 20 * SECONDS


@pytest.mark.parametrize("name", SERVED)
def test_what_only_looks_hostile_is_served(compiler: GrammarCompiler, name: str) -> None:
    assert result(compiler, **SERVED[name]).size >= 0


def test_a_check_that_is_killed_from_outside_says_nothing_about_the_grammar() -> None:
    checker = CheckProcess(load_words()[0])
    try:
        checker.check("regex", "a")
        assert checker._process is not None
        stop(checker._process.pid)
        killer = threading.Timer(0.2, checker._process.kill)
        killer.start()
        with pytest.raises(Overloaded, match="from outside"):
            checker.check("regex", "b")
        killer.join()
        assert checker.check("regex", "b") >= 0
    finally:
        checker.close()


def test_a_check_that_takes_too_long_is_given_up_and_the_next_one_works() -> None:
    checker = CheckProcess(load_words()[0], seconds=0.3)
    try:
        checker.check("regex", "a")
        # Of processor time, so that a busy machine makes no difference.
        with pytest.raises(GrammarError, match=r"longer than 0\.3 s"):
            checker.check("json", '{"type":"integer","multipleOf":1000003}')
        assert checker.check("regex", "b") >= 0
    finally:
        checker.close()


def test_a_process_that_dies_in_a_check_is_started_anew() -> None:
    checker = CheckProcess(load_words()[0], seconds=30)
    try:
        checker.check("regex", "a")
        pid = checker.pid
        assert pid is not None
        with ThreadPoolExecutor(1) as pool:
            checking = pool.submit(checker.check, "json", '{"type":"integer","multipleOf":1000003}')
            time.sleep(0.1)
            os.kill(pid, signal.SIGSEGV)
            with pytest.raises(GrammarError, match="nested too deeply"):
                checking.result(30)
        assert checker.check("regex", "b") >= 0
        assert checker.pid != pid
    finally:
        checker.close()


def test_a_machine_that_is_too_busy_is_no_fault_of_the_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is held up, as by a machine with other things to do: the request may come again later."""
    monkeypatch.setattr(check_process, "WAIT_FACTOR", 1)
    checker = CheckProcess(load_words()[0], seconds=0.1)
    try:
        checker.check("regex", "a")
        assert checker.pid is not None
        stop(checker.pid)
        with pytest.raises(Overloaded, match="could not be compiled in time"):
            checker.check("regex", "b")
        assert checker.check("regex", "b") >= 0
    finally:
        checker.close()
