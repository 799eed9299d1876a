"""What a manifest says about text: special ids, where a prompt begins, the chat template, sampling defaults."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from export.checkpoint.files import read_json
from models.family import Family
from ops.errors import CheckpointError
from rtcore.manifest import MAX_ID, TOKENIZER_FOLDER, TextInfo

TEMPLATE_FILE = "chat_template.jinja"
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


def text_info(folder: Path, config: dict[str, Any], family: Family) -> TextInfo:
    """Read the tokenizer files in `folder` (already copied) and write the chat template out of them if it lies in
    tokenizer_config.json. Raises CheckpointError when one of them is damaged."""
    settings = _optional(folder / "tokenizer_config.json")
    generation = _optional(folder / "generation_config.json")
    tokenizer = _tokenizer(folder / "tokenizer.json")
    bos = _first(_ids(generation, config, "bos_token_id"), _token_id(tokenizer, settings.get("bos_token")))
    stops = [*_ids(generation, generation, "eos_token_id"), *_ids(config, config, "eos_token_id")]
    stops += [number for number in [_token_id(tokenizer, settings.get("eos_token"))] if number is not None]
    if tokenizer is not None:
        stops += [number for text in family.stop_tokens if (number := tokenizer.token_to_id(text)) is not None]
    pad = _first(_ids(generation, config, "pad_token_id"), _token_id(tokenizer, settings.get("pad_token")))
    return TextInfo(
        bos_id=bos,
        stop_ids=tuple(dict.fromkeys(stops)),
        pad_id=pad,
        add_bos=_adds_bos(tokenizer, settings, bos),
        chat_template=_template(folder, settings),
        sampling={name: float(generation[name]) for name in SAMPLING if _is_number(generation.get(name))},
        tool_format=family.tool_format,
        reasoning_format=family.reasoning_format,
    )


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def _tokenizer(path: Path) -> Tokenizer | None:
    if not path.exists():
        return None
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for a malformed file
        raise CheckpointError(
            "The checkpoint's tokenizer.json cannot be used.", why=f"{error}.", remedy="Fetch the file again."
        ) from error


def _ids(first: dict[str, Any], second: dict[str, Any], key: str) -> list[int]:
    """The ids under `key`, one or a list, of the first of two that has it; what is no id, as -1, is none."""
    value = first[key] if first.get(key) is not None else second.get(key)
    values = value if isinstance(value, list) else [value]
    numbers = [number for number in values if isinstance(number, int) and not isinstance(number, bool)]
    return [number for number in numbers if 0 <= number <= MAX_ID]


def _first(numbers: Iterable[int], otherwise: int | None) -> int | None:
    return next(iter(numbers), otherwise)


def _token_id(tokenizer: Tokenizer | None, token: Any) -> int | None:
    """The id of a special token as tokenizer_config.json names it: a text, or an object with its content."""
    content = token.get("content") if isinstance(token, dict) else token
    return tokenizer.token_to_id(content) if tokenizer is not None and isinstance(content, str) else None


def _adds_bos(tokenizer: Tokenizer | None, settings: dict[str, Any], bos: int | None) -> bool:
    """Whether a text begins with bos: as the settings say, else as the tokenizer itself does."""
    if bos is None or tokenizer is None:
        return False
    said = settings.get("add_bos_token")
    return said if isinstance(said, bool) else tokenizer.encode("").ids[:1] == [bos]


def _template(folder: Path, settings: dict[str, Any]) -> str | None:
    """The chat template's path in the bundle. One that lies in a JSON file is written to its own."""
    path = folder / TEMPLATE_FILE
    if not path.exists():
        template = settings.get("chat_template") or _optional(folder / "chat_template.json").get("chat_template")
        if isinstance(template, list):
            named = {item.get("name"): item.get("template") for item in template if isinstance(item, dict)}
            template = named.get("default")
        if not isinstance(template, str):
            return None
        path.write_text(template, encoding="utf-8")
    return f"{TOKENIZER_FOLDER}/{TEMPLATE_FILE}"


def _is_number(value: Any) -> bool:
    """Whether a value is a finite number that a float can hold."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
