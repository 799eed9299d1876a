from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from ops.errors import BundleDamaged, CacheTooSmall, ContextLengthExceeded, InvalidRequest
from rtcore.decoding.params import SamplingParams
from rtcore.text.frontend import TextFrontend
from tests.rtcore.text.vocabularies import byte_level, fake_bundle


@pytest.fixture
def frontend(tmp_path: Path) -> TextFrontend:
    return TextFrontend(fake_bundle(tmp_path, byte_level(), context_length=64))


def test_each_sequence_is_a_request_with_a_seed_of_its_own(frontend: TextFrontend) -> None:
    requests = frontend.requests([5, 6], SamplingParams(n=3, seed=10, stop=("x",), max_tokens=4), "base")
    assert [request.id for request in requests] == ["base-0", "base-1", "base-2"]
    assert [request.params.seed for request in requests] == [10, 11, 12]
    assert all(request.prompt_ids is requests[0].prompt_ids for request in requests), "a long prompt is copied"
    assert all(request.params.n == 1 and request.params.stop == ("x",) for request in requests)
    assert [request.id for request in frontend.requests([5], SamplingParams(), "base")] == ["base"]
    assert [request.params.seed for request in frontend.requests([5], SamplingParams(n=2), "b")] == [None, None]


@pytest.mark.parametrize(
    ("seed", "seeds"), [(2**64 - 1, [2**64 - 1, 0]), (-1, [-1, 0]), (-(2**63), [-(2**63), 1 - 2**63])]
)
def test_seeds_stay_within_64_bits(frontend: TextFrontend, seed: int, seeds: list[int]) -> None:
    requests = frontend.requests([5], SamplingParams(n=2, seed=seed, max_tokens=1), "base")
    assert [request.params.seed for request in requests] == seeds


def test_without_max_tokens_the_context_is_the_limit(frontend: TextFrontend) -> None:
    (request,) = frontend.requests([5] * 10, SamplingParams(max_tokens=None), "base")
    assert request.params.max_tokens == 54
    (request,) = frontend.requests([5] * 63, SamplingParams(max_tokens=None), "base")
    assert request.params.max_tokens == 1


def test_the_cache_is_a_limit_too(tmp_path: Path) -> None:
    frontend = TextFrontend(fake_bundle(tmp_path, byte_level(), context_length=64), cache_tokens=32)
    (request,) = frontend.requests([5] * 10, SamplingParams(max_tokens=None), "base")
    assert request.params.max_tokens == 22
    with pytest.raises(CacheTooSmall, match="holds 32 tokens"):
        frontend.requests([5] * 32, SamplingParams(max_tokens=None), "base")
    with pytest.raises(CacheTooSmall, match="33 together"):
        frontend.requests([5] * 10, SamplingParams(max_tokens=23), "base")


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "said", "param"),
    [
        (64, None, "64 tokens and leaves no room", "prompt"),
        (80, 1, "81 together", "prompt"),
        (10, 55, "65 together", "max_tokens"),
    ],
)
def test_what_is_longer_than_the_context_is_refused_with_numbers(
    frontend: TextFrontend, prompt: int, max_tokens: int | None, said: str, param: str
) -> None:
    with pytest.raises(ContextLengthExceeded, match=said) as caught:
        frontend.requests([5] * prompt, SamplingParams(max_tokens=max_tokens), "base")
    assert "64 tokens" in caught.value.why
    assert caught.value.param == param


def test_a_text_far_too_long_is_refused_by_its_beginning(
    frontend: TextFrontend, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[int] = []
    encode = frontend.tokenizer.encode
    monkeypatch.setattr(
        frontend.tokenizer, "encode", lambda text, *rest: encoded.append(len(text)) or encode(text, *rest)
    )
    with pytest.raises(ContextLengthExceeded, match="100000 characters, and the first 512 are") as caught:
        frontend.encode("x y " * 25_000)
    assert (caught.value.param, encoded) == ("prompt", [512])


def test_a_long_text_of_long_tokens_is_encoded_whole(tmp_path: Path) -> None:
    frontend = TextFrontend(fake_bundle(tmp_path, byte_level(), context_length=2048))
    text = "two words ☂" * 4_000
    assert len(frontend.encode(text)) == 4_000


@pytest.mark.parametrize("prompt", [[], [10**6], [-1]])
def test_wrong_ids_are_refused(frontend: TextFrontend, prompt: list[int]) -> None:
    with pytest.raises(InvalidRequest):
        frontend.requests(prompt, SamplingParams(), "base")


def test_a_chat_is_encoded_without_a_second_beginning(tmp_path: Path) -> None:
    bundle = fake_bundle(tmp_path, byte_level(bos=True), template="{{ bos_token }}{{ messages[0].content }}")
    bundle.manifest = replace(bundle.manifest, text=replace(bundle.manifest.text, add_bos=True))
    frontend = TextFrontend(bundle)
    ids = frontend.render_chat([{"role": "user", "content": "the fox"}])
    assert ids == frontend.encode("the fox")
    assert ids.count(0) == 1


def test_the_models_defaults_hold_where_nothing_is_given(tmp_path: Path) -> None:
    bundle = fake_bundle(tmp_path, byte_level())
    sampling = {"temperature": 0.6, "top_k": 20.0, "min_p": 0.1, "n": 4.0}
    bundle.manifest = replace(bundle.manifest, text=replace(bundle.manifest.text, sampling=sampling))
    frontend = TextFrontend(bundle)
    assert frontend.default_params(max_tokens=9) == SamplingParams(
        temperature=0.6, top_k=20, min_p=0.1, max_tokens=9
    )
    assert frontend.default_params(temperature=0.0, top_k=None, min_p=0.0) == SamplingParams(
        temperature=0, top_k=20
    )
    with pytest.raises(InvalidRequest):
        frontend.default_params(top_p=2)


@pytest.mark.parametrize("missing", ["tokenizer/tokenizer.json", "tokenizer/chat_template.jinja"])
def test_a_missing_file_is_named(tmp_path: Path, missing: str) -> None:
    bundle = fake_bundle(tmp_path, byte_level(), template="x")
    (tmp_path / missing).unlink()
    with pytest.raises(BundleDamaged, match=Path(missing).name):
        TextFrontend(bundle)


@pytest.mark.parametrize("content", ["{", "[" * 100_000, '{"bos_token": ' + '{"a":' * 100_000])
def test_settings_that_are_no_json_are_damage(tmp_path: Path, content: str) -> None:
    bundle = fake_bundle(tmp_path, byte_level())
    (tmp_path / "tokenizer/tokenizer_config.json").write_text(content)
    with pytest.raises(BundleDamaged, match="tokenizer_config"):
        TextFrontend(bundle)
