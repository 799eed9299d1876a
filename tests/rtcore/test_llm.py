from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ops.errors import (
    CacheTooSmall,
    ConfigError,
    ContextLengthExceeded,
    EngineDied,
    EngineError,
    EngineUnavailable,
    InvalidRequest,
    NotABundle,
)
from rtcore import LLM, SamplingParams
from rtcore.engine import Engine
from rtcore.executor.base import StepInputs
from rtcore.text.frontend import TextFrontend
from tests.rtcore.fakes import FakeExecutor, fake_engine
from tests.rtcore.text.vocabularies import byte_level, fake_bundle

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{{ 'assistant:' if add_generation_prompt }}"
)


class Rig:
    """An LLM over a fake executor, and what is inside it."""

    def __init__(self, folder: Path, **engine: Any) -> None:
        self.folder = folder
        tokenizer = byte_level()
        num_blocks = engine.pop("num_blocks", (64,))
        self.executor = FakeExecutor(vocab_size=tokenizer.get_vocab_size(), num_blocks=num_blocks)
        self.engine: Engine = fake_engine(self.executor, stop_ids=(1,), **engine)
        frontend = TextFrontend(
            fake_bundle(folder, tokenizer, template=TEMPLATE), cache_tokens=self.engine.context_length
        )
        self.llm = LLM.over(self.engine, frontend)

    def assert_nothing_left(self) -> None:
        assert not self.engine.has_work
        self.engine.check_invariants()
        stats = self.engine.stats()
        assert stats.blocks_free == stats.blocks_total


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_outputs_are_in_the_order_of_the_prompts(rig: Rig) -> None:
    prompts = ["the fox", [5, 6, 7], "é"]
    params = [GREEDY, SamplingParams(temperature=0, max_tokens=3, ignore_eos=True), GREEDY]
    outputs = rig.llm.generate(prompts, params)
    assert [output.prompt for output in outputs] == ["the fox", None, "é"]
    assert outputs[1].prompt_token_ids == [5, 6, 7]
    assert [len(output.outputs[0].token_ids) for output in outputs] == [12, 3, 12]
    assert all(output.finished and output.outputs[0].finish_reason == "length" for output in outputs)
    alone = [rig.llm.generate(prompt, one)[0].outputs[0] for prompt, one in zip(prompts, params, strict=True)]
    assert [output.outputs[0] for output in outputs] == alone
    rig.assert_nothing_left()


def test_sequences_of_one_prompt_have_seeds_of_their_own(rig: Rig) -> None:
    (output,) = rig.llm.generate("the", SamplingParams(n=4, seed=3, max_tokens=8, ignore_eos=True))
    assert [answer.index for answer in output.outputs] == [0, 1, 2, 3]
    assert len({tuple(answer.token_ids) for answer in output.outputs}) == 4
    (second,) = rig.llm.generate("the", SamplingParams(seed=4, max_tokens=8, ignore_eos=True))
    assert second.outputs[0].token_ids == output.outputs[1].token_ids


def test_streams_say_what_generate_says(rig: Rig) -> None:
    prompts = ["the", "quick fox"]
    params = SamplingParams(n=2, seed=1, max_tokens=9, ignore_eos=True)
    whole = rig.llm.generate(prompts, params)
    last = {output.index: output for output in rig.llm.stream(prompts, params)}
    assert [last[0], last[1]] == whole
    texts = {(index, number): "" for index in range(2) for number in range(2)}
    ends = []
    for output in rig.llm.stream(prompts, params, delta=True):
        (answer,) = output.outputs
        texts[output.index, answer.index] += answer.text
        ends += [answer.finish_reason] * (answer.finish_reason is not None)
    assert texts == {(one.index, answer.index): answer.text for one in whole for answer in one.outputs}
    assert ends == ["length"] * 4


def test_cumulative_outputs_are_not_changed_afterwards(rig: Rig) -> None:
    outputs = list(rig.llm.stream("the", GREEDY))
    assert [len(output.outputs[0].token_ids) for output in outputs] == list(range(1, 13))
    assert [output.finished for output in outputs] == [False] * 11 + [True]


def test_two_streams_run_side_by_side(rig: Rig) -> None:
    alone = [rig.llm.generate(prompt, GREEDY)[0] for prompt in ("the", "fox")]
    first, second = rig.llm.stream("the", GREEDY), rig.llm.stream("fox", GREEDY)
    next(first)
    last_second = list(second)[-1]
    last_first = list(first)[-1]
    assert [last_first, last_second] == alone
    rig.assert_nothing_left()


def test_a_stop_string_ends_a_sequence_and_frees_it(rig: Rig) -> None:
    (output,) = rig.llm.generate("the", GREEDY)
    text = output.outputs[0].text
    stop = text[4:6]
    (cut,) = rig.llm.generate("the", SamplingParams(temperature=0, max_tokens=200, ignore_eos=True, stop=(stop,)))
    assert cut.outputs[0].text == text[: text.index(stop)]
    assert (cut.outputs[0].finish_reason, cut.outputs[0].stop_reason) == ("stop", stop)
    assert cut.outputs[0].token_ids == output.outputs[0].token_ids[: len(cut.outputs[0].token_ids)]
    rig.assert_nothing_left()


def test_a_closed_stream_leaves_nothing(rig: Rig) -> None:
    stream = rig.llm.stream(["the", "fox", "é"], SamplingParams(max_tokens=200, ignore_eos=True))
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    rig.assert_nothing_left()


def test_an_interrupt_leaves_nothing(rig: Rig) -> None:
    def interrupt(inputs: StepInputs) -> Exception | None:
        if rig.executor.runs == 4:
            raise KeyboardInterrupt
        return None

    rig.executor.fault = interrupt
    with pytest.raises(KeyboardInterrupt):
        rig.llm.generate(["the", "fox"], GREEDY)
    rig.assert_nothing_left()
    assert rig.llm.generate("the", GREEDY)[0].finished


def test_more_prompts_than_the_queue_takes(tmp_path: Path) -> None:
    rig = Rig(tmp_path, max_queue=2, max_sequences=2)
    outputs = rig.llm.generate([[number] for number in range(5, 16)], GREEDY)
    assert [output.prompt_token_ids for output in outputs] == [[number] for number in range(5, 16)]
    assert all(output.finished for output in outputs)
    rig.assert_nothing_left()


@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        ([10**6], InvalidRequest),
        ([], InvalidRequest),
        ([5] * 300, ContextLengthExceeded),
        ("\ud800", InvalidRequest),
        ([5, "x"], InvalidRequest),
        (7, InvalidRequest),
    ],
)
def test_one_bad_prompt_is_refused_before_anything_runs(rig: Rig, bad: Any, kind: type[InvalidRequest]) -> None:
    for run in (rig.llm.generate, rig.llm.stream):
        with pytest.raises(kind):
            run(["fine", bad, "fine"], GREEDY)
    assert rig.executor.runs == 0
    rig.assert_nothing_left()


def test_the_bad_prompt_is_named(rig: Rig) -> None:
    with pytest.raises(InvalidRequest, match=r"Prompt 1: Token id 1000000"):
        rig.llm.generate([[5], [10**6]])


def test_a_cache_too_small_is_said_before_anything_runs(tmp_path: Path) -> None:
    rig = Rig(tmp_path, num_blocks=(8,))
    with pytest.raises(CacheTooSmall):
        rig.llm.generate(["fine", [5] * 40], GREEDY)
    assert rig.executor.runs == 0


def test_one_set_of_parameters_a_prompt(rig: Rig) -> None:
    with pytest.raises(InvalidRequest, match="2 prompts and 3 sampling"):
        rig.llm.generate(["a", "b"], [GREEDY] * 3)
    assert rig.llm.generate([], GREEDY) == []


def test_chat_goes_through_the_template(rig: Rig) -> None:
    hello = [{"role": "user", "content": "hello"}]
    (output,) = rig.llm.chat(hello, GREEDY)
    assert output.prompt == "user: hello\nassistant:"
    assert rig.llm.generate("user: hello\nassistant:", GREEDY)[0].outputs == output.outputs
    bare, named = rig.llm.chat([hello, [{"role": "tool", "content": "x"}]], GREEDY, add_generation_prompt=False)
    assert (bare.prompt, named.prompt) == ("user: hello\n", "tool: x\n")
    assert list(rig.llm.stream_chat(hello, GREEDY))[-1] == output
    with pytest.raises(InvalidRequest, match="no messages"):
        rig.llm.chat([], GREEDY)


def test_a_failing_request_ends_the_call_and_only_that(rig: Rig) -> None:
    rig.executor.poison = 7
    with pytest.raises(EngineError):
        rig.llm.generate([[5], [7], [6]], SamplingParams(max_tokens=200, ignore_eos=True))
    rig.assert_nothing_left()
    assert rig.llm.generate([5], GREEDY)[0].finished


def test_a_dead_engine_is_an_error_each_time(rig: Rig) -> None:
    rig.executor.fault = lambda inputs: EngineDied("The executor died.")
    with pytest.raises(EngineDied):
        rig.llm.generate(["the"], GREEDY)
    with pytest.raises((EngineDied, EngineUnavailable)):
        rig.llm.generate(["the"], GREEDY)


def test_after_close_every_use_says_so(rig: Rig) -> None:
    stream = rig.llm.stream("the", GREEDY)
    next(stream)
    with rig.llm:
        pass
    rig.llm.close()
    assert rig.executor.closed
    for use in (
        lambda: rig.llm.generate("the"),
        lambda: rig.llm.chat([]),
        lambda: next(stream),
        lambda: rig.llm.manifest,
    ):
        with pytest.raises(EngineUnavailable, match="closed"):
            use()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"thread": 2}, "threads"),
        ({"threads": "two"}, "threads"),
        ({"threads": 0}, "threads"),
        ({"max_step_tokens": 8}, "max_step_tokens"),
        ({"check": "none"}, "check"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        LLM("nowhere", **settings)


def test_a_path_without_a_bundle_is_said(tmp_path: Path) -> None:
    with pytest.raises(NotABundle):
        LLM(tmp_path)


def test_small_parts_import_without_the_engine() -> None:
    code = (
        "import sys, rtcore.request, ops.errors, rtcore\n"
        "heavy = {'numpy', 'onnxruntime', 'tokenizers', 'jinja2', 'rtcore.engine'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert 'LLM' in dir(rtcore)\n"
        "from rtcore import SamplingParams\n"
        "assert SamplingParams().n == 1\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
