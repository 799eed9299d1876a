"""What the manifest says about text, from all the places where checkpoints keep it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, models, processors

from export.text_info import text_info
from models.family import Family
from ops.errors import CheckpointError

FAMILY = Family("Test", ("test",), stop_tokens=("<|im_end|>", "<|absent|>"), tool_format="hermes")
WORDS = ["<s>", "</s>", "<pad>", "<|im_end|>", "a", "b"]


def folder(path: Path, bos: bool = False, settings: dict[str, Any] | None = None, **files: Any) -> Path:
    """A tokenizer folder; files are JSON contents by stem."""
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="a"))
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in WORDS[:4]])
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.save(str(path / "tokenizer.json"))
    for stem, content in {"tokenizer_config": settings or {}, **files}.items():
        (path / f"{stem}.json").write_text(json.dumps(content))
    return path


def test_ids_come_from_all_files_and_from_the_family(tmp_path: Path) -> None:
    path = folder(
        tmp_path,
        settings={"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}, "pad_token": "<pad>"},
        generation_config={
            "eos_token_id": [5, 1],
            "temperature": 0.6,
            "top_p": 0.9,
            "top_k": 20,
            "do_sample": True,
        },
    )
    info = text_info(path, {"eos_token_id": 4, "vocab_size": 6}, FAMILY)
    assert info.stop_ids == (5, 1, 4, 3)
    assert (info.bos_id, info.pad_id, info.tool_format) == (0, 2, "hermes")
    assert info.sampling == {"temperature": 0.6, "top_p": 0.9, "top_k": 20.0}


def test_ids_that_stand_for_none_are_none(tmp_path: Path) -> None:
    info = text_info(folder(tmp_path), {"eos_token_id": None, "bos_token_id": -1, "pad_token_id": True}, FAMILY)
    assert (info.bos_id, info.stop_ids, info.pad_id) == (None, (3,), None)


@pytest.mark.parametrize(
    ("writes", "said", "adds"),
    [(True, None, True), (False, None, False), (True, False, False), (False, True, True)],
)
def test_settings_decide_whether_text_begins_with_bos(
    tmp_path: Path, writes: bool, said: bool | None, adds: bool
) -> None:
    settings = {"bos_token": "<s>"} if said is None else {"bos_token": "<s>", "add_bos_token": said}
    assert text_info(folder(tmp_path, writes, settings), {}, FAMILY).add_bos is adds


@pytest.mark.parametrize(
    ("settings", "files", "expected"),
    [
        ({"chat_template": "T"}, {}, "T"),
        ({"chat_template": [{"name": "tool_use", "template": "U"}, {"name": "default", "template": "T"}]}, {}, "T"),
        ({}, {"chat_template": {"chat_template": "T"}}, "T"),
        ({"chat_template": [{"name": "tool_use", "template": "U"}]}, {}, None),
        ({"chat_template": 7}, {}, None),
        ({}, {}, None),
    ],
)
def test_a_template_within_json_gets_a_file_of_its_own(
    tmp_path: Path, settings: dict[str, Any], files: dict[str, Any], expected: str | None
) -> None:
    info = text_info(folder(tmp_path, settings=settings, **files), {}, FAMILY)
    written = tmp_path / "chat_template.jinja"
    if expected is None:
        assert info.chat_template is None and not written.exists()
    else:
        assert info.chat_template == "tokenizer/chat_template.jinja"
        assert written.read_text() == expected


def test_a_template_file_wins_over_json(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("file")
    text_info(folder(tmp_path, settings={"chat_template": "json"}), {}, FAMILY)
    assert (tmp_path / "chat_template.jinja").read_text() == "file"


def test_without_a_tokenizer_only_the_configuration_counts(tmp_path: Path) -> None:
    info = text_info(tmp_path, {"bos_token_id": 1, "eos_token_id": 2}, FAMILY)
    assert (info.bos_id, info.stop_ids, info.add_bos) == (1, (2,), False)


@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json", "generation_config.json"])
def test_damaged_files_are_named(tmp_path: Path, file: str) -> None:
    folder(tmp_path, generation_config={})
    (tmp_path / file).write_text("{")
    with pytest.raises(CheckpointError, match=file):
        text_info(tmp_path, {}, FAMILY)


def test_numbers_that_are_none_are_left_out(tmp_path: Path) -> None:
    sampling = {"temperature": float("nan"), "top_p": float("inf"), "top_k": 10**400, "min_p": 0.1}
    ids = {"eos_token_id": [1, 2**31, 10**30], "bos_token_id": 2**70}
    path = folder(tmp_path, generation_config={**sampling, **ids})
    info = text_info(path, {}, FAMILY)
    assert (info.sampling, info.bos_id, info.stop_ids) == ({"min_p": 0.1}, None, (1, 3))
