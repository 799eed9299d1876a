"""Logits processors and stop rules of the user's own: the example of the documentation, and hooks that fail."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ops.errors import InvalidRequest
from rtcore.decoding.params import Hook, SamplingParams
from rtcore.request import EngineRequest, TokenDelta
from tests.rtcore.fakes import Deltas, FakeExecutor, advance, drain, fake_engine, fake_logits, tokens_of
from tests.rtcore.late_executor import LateExecutor

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "decoding.md"
VOCABULARY = 97
PROMPT = [5, 6, 7, 8]

BROKEN = """
from dataclasses import dataclass

class Counts:
    def begin(self, options, prompt, vocab_size):
        return []
    def apply(self, logits, rows):
        for row in rows:
            row.state.append(len(row.tokens))
            if len(row.tokens) - row.prompt_length != len(row.state) - 1:
                raise ValueError("not one call a token")

class RefusesBadly:
    def begin(self, options, prompt, vocab_size):
        return options["missing"]

@dataclass  # equal by value, so not hashable
class Fails:
    def begin(self, options, prompt, vocab_size):
        return None
    def apply(self, logits, rows):
        logits[:] = 0
        raise ZeroDivisionError("as it happens")
    def check(self, rows):
        raise ZeroDivisionError("as it happens")

class Spoils(Fails):
    def apply(self, logits, rows):
        logits[:] = float("nan")

class CannotBeMade:
    def __init__(self):
        raise OSError("no such file")
"""
MORE = """
counts = my_broken:Counts
fails = my_broken:Fails
spoils = my_broken:Spoils
refuses = my_broken:RefusesBadly
unmade = my_broken:CannotBeMade
absent = my_broken:Nothing
"""


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package of the documentation, and one of broken hooks, as if they were installed."""
    text = DOCUMENT.read_text()
    (source,) = re.findall(r"```python\n(# my_decoding.py\n.*?)```", text, re.DOTALL)
    (project,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "my_decoding.py").write_text(source)
    (tmp_path / "my_broken.py").write_text(BROKEN)
    entries = re.sub(r'\[project.entry-points."(.*?)"\]', r"[\1]", project).replace('"', "")
    broken = "".join(f"[ortolan.{kind}]\n{MORE}" for kind in ("logits_processors", "stop_rules"))
    for name, content in (("my_decoding", entries.partition("\n")[2]), ("my_broken", broken)):
        folder = tmp_path / f"{name}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(content)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in ("my_decoding", "my_broken"):
        sys.modules.pop(name, None)


def run(*asked: dict[str, Any], blocks: int = 64) -> list[list[TokenDelta]]:
    engine = fake_engine(FakeExecutor(num_blocks=[blocks]), max_sequences=8)
    for number, fields in enumerate(asked):
        params = SamplingParams(**{"temperature": 0.0, "max_tokens": 12, "ignore_eos": True, **fields})
        engine.submit(EngineRequest(f"r{number}", PROMPT, params))
    deltas = drain(engine)
    return [deltas[f"r{number}"] for number in range(len(asked))]


def without_repeats(last: int, count: int = 12, prompt: list[int] = PROMPT) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        logits = fake_logits(tokens, VOCABULARY).astype(np.float32)
        logits[tokens[-last:]] = -np.inf
        tokens.append(int(logits.argmax()))
    return tokens[len(prompt) :]


def test_the_processor_of_the_documentation() -> None:
    hooks = [Hook("no-repeat", {"last": 60}), Hook("no-repeat", {"last": 2}), Hook("no-repeat")]
    plain, *processed = run({}, *({"logits_processors": [hook]} for hook in hooks))
    assert tokens_of(plain) == tokens_of(run({})[0])
    assert [tokens_of(deltas) for deltas in processed] == [
        without_repeats(60),
        without_repeats(2),
        without_repeats(8),
    ]


def test_a_stop_rule_ends_a_sequence_with_its_reason() -> None:
    plain, stopped = run({}, {"stop_rules": [Hook("sum-reached", {"sum": 150})]})
    sums = np.cumsum(tokens_of(plain))
    count = int(np.searchsorted(sums, 150)) + 1
    assert 1 < count < 12
    assert tokens_of(stopped) == tokens_of(plain)[:count]
    assert (stopped[-1].finish_reason, stopped[-1].stop_reason) == ("stop", "sum reached")
    assert plain[-1].finish_reason == "length"


def test_state_survives_preemption() -> None:
    engine = fake_engine(FakeExecutor(num_blocks=[9]), max_sequences=4)
    prompts = [[20 + number, *PROMPT] for number in range(4)]
    params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=16, logits_processors=["no-repeat"])  # type: ignore[arg-type]
    for number, prompt in enumerate(prompts):
        engine.submit(EngineRequest(f"r{number}", prompt, params))
    deltas = drain(engine)
    assert engine.stats().preemptions
    for number, prompt in enumerate(prompts):
        assert tokens_of(deltas[f"r{number}"]) == without_repeats(8, 16, prompt)


def test_log_probabilities_stay_those_of_the_model() -> None:
    plain, processed = run({"logprobs": 2}, {"logprobs": 2, "logits_processors": [Hook("no-repeat", {"last": 90})]})
    first, second = plain[0].logprobs[0], processed[0].logprobs[0]
    assert (first.top_ids, first.top_logprobs) == (second.top_ids, second.top_logprobs)
    for delta in processed:
        for token, told in zip(delta.token_ids, delta.logprobs, strict=True):
            assert told.rank >= 1 and (told.rank > 2 or token in told.top_ids)


@pytest.mark.parametrize("kind", ["logits_processors", "stop_rules"])
def test_a_hook_that_fails_ends_its_requests_alone(kind: str) -> None:
    plain, failed, again, beside = run({}, {kind: ["fails"]}, {kind: ["fails"]}, {"temperature": 1.0, "seed": 3})
    for deltas in (failed, again):
        assert deltas[-1].finish_reason == "error" and deltas[-1].failure is not None
        assert "Fails" in deltas[-1].failure.what and "as it happens" in deltas[-1].failure.why
    assert len(tokens_of(plain)) == len(tokens_of(beside)) == 12
    assert tokens_of(plain) == tokens_of(run({})[0])


def test_a_hook_that_fails_does_not_end_a_prompt_in_the_same_step() -> None:
    engine = fake_engine(FakeExecutor(num_blocks=[64]), max_sequences=8, max_prefill_chunk=8)
    greedy = {"temperature": 0.0, "max_tokens": 3, "ignore_eos": True}
    engine.submit(EngineRequest("bad", PROMPT, SamplingParams(**greedy, logits_processors=["fails"])))  # type: ignore[arg-type]
    engine.submit(EngineRequest("long", list(range(3, 43)), SamplingParams(**greedy)))  # type: ignore[arg-type]
    deltas = drain(engine)
    assert deltas["bad"][-1].finish_reason == "error"
    assert (deltas["long"][-1].finish_reason, len(tokens_of(deltas["long"]))) == ("length", 3)


def test_a_processor_is_called_once_a_token_also_where_the_prompt_is_scored() -> None:
    counted, scored = run(
        {"logits_processors": ["counts"]}, {"logits_processors": ["counts"], "prompt_logprobs": 1}
    )
    assert counted[-1].finish_reason == scored[-1].finish_reason == "length"
    assert tokens_of(counted) == tokens_of(scored)


def test_logits_that_a_processor_spoils_are_its_own_fault() -> None:
    (deltas,) = run({"logits_processors": ["spoils"]})
    assert deltas[-1].failure is not None and "logits processors" in deltas[-1].failure.what


@pytest.mark.parametrize("kind", ["logits_processors", "stop_rules"])
@pytest.mark.parametrize(
    ("name", "said"),
    [("nothing", "among the"), ("refuses", "cannot take"), ("unmade", "loaded"), ("absent", "loaded")],
)
def test_a_hook_that_cannot_be_used_refuses_the_request(kind: str, name: str, said: str) -> None:
    engine = fake_engine()
    with pytest.raises(InvalidRequest, match=said) as caught:
        engine.submit(EngineRequest("r", PROMPT, SamplingParams(**{kind: [name]})))  # type: ignore[arg-type]
    assert caught.value.param == kind
    assert not engine.has_work
    with pytest.raises(InvalidRequest, match="positive"):
        engine.submit(
            EngineRequest("r", PROMPT, SamplingParams(logits_processors=[Hook("no-repeat", {"last": 0})]))
        )  # type: ignore[arg-type]
    engine.check_invariants()


def test_logits_are_not_copied_where_nobody_uses_a_hook() -> None:
    executor = FakeExecutor()
    executor.logits = lambda: pytest.fail("nobody asked for logits")  # type: ignore[method-assign]
    engine = fake_engine(executor)
    engine.submit(EngineRequest("r", PROMPT, SamplingParams(max_tokens=3, logprobs=2, prompt_logprobs=1)))
    assert len(tokens_of(drain(engine)["r"])) == 3


def test_log_probabilities_of_others_are_of_their_tokens_when_steps_go_ahead() -> None:
    """They are told anew beside a request with processors, without choosing anew by tokens that are gone then."""

    def told(executor: FakeExecutor) -> tuple[Any, int]:
        engine = fake_engine(executor)
        penalties = {"presence_penalty": 2.0, "frequency_penalty": 2.0}
        for number in range(3):
            counted = SamplingParams(seed=number, ignore_eos=True, max_tokens=20, logprobs=1, **penalties)
            engine.submit(EngineRequest(f"r{number}", [20 + number, *PROMPT], counted))
        deltas: Deltas = {}
        for _ in range(5):
            advance(engine, deltas)
        edited = SamplingParams(temperature=0.0, max_tokens=4, logprobs=1, logits_processors=[Hook("no-repeat")])
        engine.submit(EngineRequest("edited", PROMPT, edited))
        drain(engine, deltas)
        answers = {
            name: [(token, one) for part in parts for token, one in zip(part.token_ids, part.logprobs, strict=True)]
            for name, parts in deltas.items()
        }
        return answers, engine.stats().steps_ahead

    late, ahead = told(LateExecutor())
    plain, _ = told(FakeExecutor())
    assert ahead > 5 and late == plain
