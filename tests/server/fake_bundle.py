"""A bundle with a real tokenizer and chat template and no model, for servers over a fake engine."""

from __future__ import annotations

import hashlib
from pathlib import Path

from rtcore import seal
from rtcore.manifest import (
    MANIFEST_FILE,
    TOKENIZER_FOLDER,
    CacheGroup,
    Dimensions,
    FileEntry,
    Manifest,
    Source,
    TextInfo,
    Variant,
)
from tests.rtcore.process.fakes import CONTEXT_LENGTH, EOS, VOCAB_SIZE
from tests.tiny import TEMPLATE, write_tokenizer

NAME = "echo"
VERSION = "echo-1"
TEMPLATE_FILE = f"{TOKENIZER_FOLDER}/chat_template.jinja"
STEP = "graphs/fp32.cpu.step.onnx"


def write_fake_bundle(root: Path, *, chat: bool = True, sampling: dict[str, float] | None = None) -> Path:
    """Write the bundle into `root`, which must not exist, and return it."""
    (root / TOKENIZER_FOLDER).mkdir(parents=True)
    (root / "graphs").mkdir()
    write_tokenizer(root / TOKENIZER_FOLDER)
    (root / STEP).write_bytes(b"no graph")
    if chat:
        (root / TEMPLATE_FILE).write_text(TEMPLATE)
    files = tuple(
        FileEntry(
            path.relative_to(root).as_posix(), path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest()
        )
        for path in sorted(root.rglob("*"))
        if path.is_file()
    )
    manifest = Manifest(
        name=NAME,
        family="echo",
        version=VERSION,
        source=Source("random", NAME),
        dimensions=Dimensions(VOCAB_SIZE, 8, 1, 1, 1, 8, CONTEXT_LENGTH, 1),
        variants=(Variant("fp32", "cpu", STEP, (), (CacheGroup(),), ()),),
        default_precision="fp32",
        text=TextInfo(stop_ids=(EOS,), chat_template=TEMPLATE_FILE if chat else None, sampling=sampling or {}),
        files=files,
    )
    (root / MANIFEST_FILE).write_bytes(seal.encode(manifest))
    return root
