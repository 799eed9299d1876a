"""A draft model: its drafts are what it would write itself, whatever was accepted of the ones before."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops.errors import BundleDamaged, ConfigError
from rtcore.config import EngineConfig
from rtcore.decoding.speculation.base import Ask
from rtcore.decoding.speculation.draft_model import DraftModel, check_vocabularies, load
from tests.rtcore.fakes import FakeExecutor, fake_logits

VOCABULARY = 31


def ahead(tokens: Sequence[int], count: int) -> list[int]:
    """What the fake model writes after tokens, greedily."""
    known = list(tokens)
    for _ in range(count):
        known.append(int(fake_logits(known, VOCABULARY).argmax()))
    return known[len(tokens) :]


def model_of(blocks: int = 64, sequences: int = 4, tokens: int = 64, context: int = 256) -> DraftModel:
    executor = FakeExecutor(num_blocks=[blocks], block_size=4, vocab_size=VOCABULARY)
    return DraftModel(executor, context_length=context, max_sequences=sequences, max_tokens=tokens)


def ask(key: str, tokens: Sequence[int], count: int) -> Ask:
    return Ask(key, np.array(tokens, np.int64), count)


@settings(deadline=None)
@given(st.data())
def test_drafts_follow_whatever_was_accepted(data: st.DataObject) -> None:
    model = model_of(blocks=data.draw(st.integers(20, 64)))
    known = {key: data.draw(st.lists(st.integers(3, 30), min_size=1, max_size=9)) for key in "abc"}
    for _ in range(data.draw(st.integers(1, 8))):
        asked = data.draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True))
        counts = [data.draw(st.integers(1, 5)) for _ in asked]
        drafts = model.propose([ask(key, known[key], count) for key, count in zip(asked, counts, strict=True)])
        for key, count, found in zip(asked, counts, drafts, strict=True):
            assert list(found) == ahead(known[key], count)
            # The target takes some of them and one token of its own, or goes on without asking.
            taken = data.draw(st.integers(0, len(found)))
            known[key] += [*found[:taken], data.draw(st.integers(3, 30))]
        if data.draw(st.booleans()):
            known[data.draw(st.sampled_from("abc"))] += [5, 6, 7]
    for key in "abc":
        model.forget(key)
    assert model._blocks.free_blocks == model._blocks.num_blocks
    model.close()
    model.close()


def test_a_long_prompt_is_taken_in_over_several_calls() -> None:
    model = model_of(tokens=16)
    prompt = [3 + number % 20 for number in range(40)]
    found = [list(model.propose([ask("a", prompt, 3)])[0]) for _ in range(3)]
    assert found == [[], [], ahead(prompt, 3)]


def test_what_was_asked_for_the_longest_ago_gives_way() -> None:
    model = model_of(sequences=2)
    for key in "abc":
        assert list(model.propose([ask(key, [5, 6], 2)])[0]) == ahead([5, 6], 2)
    assert list(model._shadows) == ["b", "c"]


def test_more_asks_than_places() -> None:
    model = model_of(sequences=2)
    found = model.propose([ask(key, [5, 6], 2) for key in "abc"])
    assert [list(drafts) for drafts in found] == [[], ahead([5, 6], 2), ahead([5, 6], 2)]


def test_without_room_there_are_no_drafts() -> None:
    model = model_of(blocks=3, context=256)
    assert list(model.propose([ask("a", [5] * 30, 4)])[0]) == []
    assert list(model.propose([ask("b", [5] * 11, 4)])[0]) == ahead([5] * 11, 1)


def bundle_with(path: Path, tokenizer: Any) -> Any:
    (path / "tokenizer").mkdir(parents=True)
    (path / "tokenizer" / "tokenizer.json").write_text(json.dumps(tokenizer))
    return SimpleNamespace(path=path, file=lambda name: path / name)


def test_vocabularies_must_be_equal(tmp_path: Path) -> None:
    target = bundle_with(
        tmp_path / "target", {"model": {"vocab": {"a": 0}}, "added_tokens": [{"content": "b", "id": 1}]}
    )
    equal = bundle_with(tmp_path / "equal", {"model": {"vocab": [["a", -1.0], ["b", -2.0]]}})
    other = bundle_with(tmp_path / "other", {"model": {"vocab": {"b": 0, "a": 1}}})
    broken = bundle_with(tmp_path / "broken", {"model": {}})
    check_vocabularies(target, equal)
    with pytest.raises(ConfigError, match="other has another vocabulary than target"):
        check_vocabularies(target, other)
    with pytest.raises(BundleDamaged, match="broken"):
        check_vocabularies(target, broken)


def test_a_draft_model_has_to_be_named() -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, EngineConfig(speculation="draft"))  # type: ignore[arg-type]
    assert caught.value.param == "draft_bundle"
