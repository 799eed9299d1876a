"""One measurement of one engine: its driver in a process of the engine's own Python, asked and answered in JSON."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import msgspec

from server.bench.compare.entries import Entry
from server.bench.compare.registry import BASE, driver

_SHOWN = 600


class Request(msgspec.Struct, frozen=True):
    """What a driver is asked; see drivers/base.py."""

    model: str
    threads: int
    options: dict[str, Any]
    cache_tokens: int
    sequences: int
    warm_up: list[int]
    prefill: list[int]
    decode: dict[str, list[list[int]]]
    new_tokens: dict[str, int]


class Answer(msgspec.Struct, frozen=True):
    """What a driver answered: figures, or why there are none. load_average: of the machine just before."""

    missing: str = ""
    error: str = ""
    version: str = ""
    load_seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_tokens_s: dict[str, float] = {}
    ids: dict[str, list[int]] = {}
    peak_bytes: int = 0
    load_average: float = 0.0


def ask(entry: Entry, request: Request, timeout: float) -> Answer:
    """Run the entry's driver once. Whatever goes wrong with the engine is part of the answer."""
    if not Path(entry.python).exists():
        return Answer(missing=f"there is no {entry.python}")
    if not Path(entry.model).exists():
        return Answer(missing=f"there is no {entry.model}")
    command = [entry.python, str(BASE), str(driver(entry.engine))]
    if entry.environment:
        command = ["env", *(f"{name}={value}" for name, value in entry.environment.items()), *command]
    content = msgspec.json.encode(msgspec.structs.replace(request, model=entry.model, options=entry.options))
    load = os.getloadavg()[0]
    try:
        done = subprocess.run(command, input=content, capture_output=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        return Answer(error=f"no answer within {timeout:g} s", load_average=load)
    except OSError as error:
        return Answer(missing=f"{entry.python} cannot be run: {error}")
    try:
        answer = msgspec.json.decode(done.stdout, type=Answer)
    except msgspec.DecodeError:
        said = done.stderr.decode(errors="replace").strip()[-_SHOWN:]
        return Answer(error=f"the process ended with {done.returncode}: {said}", load_average=load)
    return msgspec.structs.replace(answer, load_average=load)
