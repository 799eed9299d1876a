"""The offline API's log-probabilities, echo and best_of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ops.errors import InvalidRequest
from ops.reference.sample import log_softmax
from rtcore import SamplingParams
from tests.rtcore.fakes import fake_logits
from tests.rtcore.test_llm import Rig


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_log_probabilities_of_answer_and_prompt(rig: Rig) -> None:
    params = SamplingParams(n=2, seed=4, max_tokens=6, ignore_eos=True, logprobs=2, prompt_logprobs=1)
    (output,) = rig.llm.generate("the fox", params)
    prompt = output.prompt_token_ids
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None and len(output.prompt_logprobs) == len(prompt)
    for place, entry in enumerate(output.prompt_logprobs[1:], start=1):
        logs = log_softmax(fake_logits(prompt[:place], rig.executor.vocab_size).astype(np.float32))
        assert entry is not None and entry[prompt[place]].logprob == pytest.approx(logs[prompt[place]], abs=1e-5)
        assert min(one.rank or 0 for one in entry.values()) == 1
    for answer in output.outputs:
        assert answer.logprobs is not None and len(answer.logprobs) == 6
        told = [choices[token] for token, choices in zip(answer.token_ids, answer.logprobs, strict=True)]
        assert answer.cumulative_logprob == pytest.approx(sum(one.logprob for one in told))
        assert all(2 <= len(choices) <= 3 for choices in answer.logprobs)
        assert [next(iter(choices)) for choices in answer.logprobs] == answer.token_ids
    assert len({id(answer.logprobs) for answer in output.outputs}) == 2


def test_nothing_is_told_that_was_not_asked_for(rig: Rig) -> None:
    (output,) = rig.llm.generate("the fox", SamplingParams(max_tokens=3))
    assert output.prompt_logprobs is None
    assert output.outputs[0].logprobs is None and output.outputs[0].cumulative_logprob is None


def test_best_of_gives_the_likeliest_first(rig: Rig) -> None:
    every = rig.llm.generate("the", SamplingParams(n=5, seed=9, max_tokens=5, ignore_eos=True, logprobs=0))[
        0
    ].outputs
    likeliest = sorted(every, key=lambda one: -(one.cumulative_logprob or 0.0))
    params = SamplingParams(n=2, best_of=5, seed=9, max_tokens=5, ignore_eos=True)
    (output,) = rig.llm.generate("the", params)
    assert output.finished
    assert [one.token_ids for one in output.outputs] == [one.token_ids for one in likeliest[:2]]
    assert [one.index for one in output.outputs] == [0, 1]
    assert all(one.logprobs is None for one in output.outputs)
    with pytest.raises(InvalidRequest) as caught:
        rig.llm.stream("the", params)
    assert caught.value.param == "best_of"
    rig.assert_nothing_left()


def test_echo_begins_every_answer_and_the_prompt_is_told_once(rig: Rig) -> None:
    params = SamplingParams(n=3, seed=1, max_tokens=4, ignore_eos=True)
    plain = rig.llm.generate("the fox", params)[0]
    echoed = rig.llm.generate(
        "the fox", SamplingParams(n=3, seed=1, max_tokens=4, ignore_eos=True, echo=True, prompt_logprobs=0)
    )[0]
    assert [one.text for one in echoed.outputs] == ["the fox" + one.text for one in plain.outputs]
    assert [one.token_ids for one in echoed.outputs] == [one.token_ids for one in plain.outputs]
    assert echoed.prompt_logprobs is not None and len(echoed.prompt_logprobs) == len(echoed.prompt_token_ids)


def test_a_stream_adds_up_to_the_whole(rig: Rig) -> None:
    params = SamplingParams(seed=2, max_tokens=6, ignore_eos=True, logprobs=1, prompt_logprobs=1, echo=True)
    (whole,) = rig.llm.generate("the fox", params)
    parts = [output.outputs[0] for output in rig.llm.stream("the fox", params, delta=True)]
    assert "".join(part.text for part in parts) == whole.outputs[0].text
    assert [choices for part in parts for choices in part.logprobs or []] == whole.outputs[0].logprobs
    *_, last = rig.llm.stream("the fox", params)
    assert last == whole


def test_bad_words_are_texts_here(rig: Rig) -> None:
    params = {"temperature": 0.0, "max_tokens": 12, "ignore_eos": True}
    (output,) = rig.llm.generate("the", SamplingParams(**params))  # type: ignore[arg-type]
    word = rig.llm.frontend.tokenizer.decode(output.outputs[0].token_ids[:1])
    (without,) = rig.llm.generate("the", SamplingParams(**params, bad_words=(word,)))  # type: ignore[arg-type]
    banned = rig.llm.frontend.tokenizer.encode(word, add_special_tokens=False)
    ids = without.outputs[0].token_ids
    assert all(ids[place : place + len(banned)] != banned for place in range(len(ids)))
