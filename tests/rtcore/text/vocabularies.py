"""Small tokenizers of each kind that language models use, and stand-ins for bundles around them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from rtcore.manifest import TextInfo
from rtcore.text.tokenizer import Tokenizer as OrtolanTokenizer
from tests.rtcore.fakes import fake_manifest

CORPUS = (
    "the quick brown fox jumps over the lazy dog",
    "Grüße aus Köln, où est la bibliothèque?",
    "日本語のテキスト、中文文本。",
    "🙂🙃🎉 emoji 👩‍👩‍👧",
    "def add(a, b):\n    return a + b\n",
)
SPECIAL = ("<s>", "</s>", "<|im_start|>")
SPACE = "▁"


def byte_level(bos: bool = False) -> Tokenizer:
    """Byte-level BPE with special tokens, an added one that is not special, and one outside the byte alphabet."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("<think>", special=False), AddedToken("two words ☂", special=False)])
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return tokenizer


def _sentencepiece(decoder: Any) -> Tokenizer:
    words = ["the", "quick", "fox", "é", "中", "a", "b", "!", "\n"]
    entries = [*SPECIAL, "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), SPACE, SPACE * 2]
    entries += [*words, *(SPACE + word for word in words)]
    vocabulary = {entry: number for number, entry in enumerate(entries)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens([*SPECIAL, "<unk>"])
    return tokenizer


def llama_like() -> Tokenizer:
    """Byte fallback; the first space of a text is stripped."""
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    return _sentencepiece(decoders.Sequence(steps))


def gemma_like() -> Tokenizer:
    """Byte fallback; no space is stripped."""
    return _sentencepiece(
        decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    )


def gguf_like() -> Tokenizer:
    """Byte fallback; spaces are replaced after all is fused, then the first is stripped."""
    steps = [decoders.ByteFallback(), decoders.Fuse(), decoders.Replace(SPACE, " "), decoders.Strip(" ", 1, 0)]
    return _sentencepiece(decoders.Sequence(steps))


def metaspace() -> Tokenizer:
    """No bytes; the first entry loses its spaces."""
    return _sentencepiece(decoders.Metaspace())


def undecoded() -> Tokenizer:
    """No decoder: entries are joined by spaces."""
    tokenizer = _sentencepiece(decoders.Fuse())
    description = json.loads(tokenizer.to_str())
    description["decoder"] = None
    return Tokenizer.from_str(json.dumps(description))


MAKERS = {
    "byte_level": byte_level,
    "llama_like": llama_like,
    "gemma_like": gemma_like,
    "gguf_like": gguf_like,
    "metaspace": metaspace,
    "undecoded": undecoded,
}


def wrap(tokenizer: Tokenizer, **info: Any) -> OrtolanTokenizer:
    """The tokenizer as a bundle with that TextInfo has it."""
    return OrtolanTokenizer(tokenizer, TextInfo(**info))


def fake_bundle(
    folder: Path, tokenizer: Tokenizer, *, context_length: int = 256, template: str | None = None
) -> Any:
    """What TextFrontend reads of a bundle, in `folder`."""
    (folder / "tokenizer").mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer" / "tokenizer.json"))
    info = TextInfo(bos_id=0, stop_ids=(1,))
    if template is not None:
        (folder / "tokenizer" / "chat_template.jinja").write_text(template, encoding="utf-8")
        info = TextInfo(bos_id=0, stop_ids=(1,), chat_template="tokenizer/chat_template.jinja")
    plain = fake_manifest(vocab_size=tokenizer.get_vocab_size(), context_length=context_length, stop_ids=(1,))
    from msgspec.structs import replace

    return SimpleNamespace(path=folder, manifest=replace(plain, text=info), file=lambda name: folder / name)
