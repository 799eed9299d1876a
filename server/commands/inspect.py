"""``ortolan inspect``: what a bundle holds."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec

from rtcore.bundle import Bundle
from rtcore.command import Command
from rtcore.manifest import Manifest, Variant


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="directory that `ortolan export` wrote")
    parser.add_argument("--json", action="store_true", help="print the manifest as JSON")
    parser.add_argument("--files", action="store_true", help="list every file with its size and sha256")


def _run(arguments: argparse.Namespace) -> int:
    with Bundle.open(arguments.bundle, check="sizes") as bundle:
        manifest = bundle.manifest
        if arguments.json:
            sys.stdout.write(msgspec.json.encode(manifest).decode() + "\n")
            return 0
        rows = [
            ("path", str(bundle.path)),
            *_model_rows(manifest),
            *_variant_rows(manifest),
            *_origin_rows(manifest),
        ]
    width = max(len(name) for name, _ in rows)
    sys.stdout.write("".join(f"{name:<{width}}  {value}\n" for name, value in rows))
    if arguments.files:
        sys.stdout.write("\n" + "".join(_file_lines(manifest)))
    return 0


def _model_rows(manifest: Manifest) -> list[tuple[str, str]]:
    size = manifest.dimensions
    layers = f"{size.layers} of width {size.hidden_size:,}, {size.heads} heads, {size.kv_heads} for k and v"
    if size.experts:
        layers += f", up to {size.experts} experts, {size.experts_per_token} for a token"
    return [
        ("model", f"{manifest.name} ({manifest.family}), {_short(size.parameters)} parameters"),
        ("version", manifest.version),
        ("context", f"{size.context_length:,} tokens"),
        ("layers", layers),
        ("vocabulary", f"{size.vocab_size:,} tokens"),
        ("chat", "yes" if manifest.text.chat_template else "no chat template"),
    ]


def _variant_rows(manifest: Manifest) -> list[tuple[str, str]]:
    """For each variant its weights and cache, and how it was quantised."""
    if manifest.skeleton:
        return [("weights", "none yet: a skeleton, to be completed with `ortolan fill`")]
    sizes = {entry.path: entry.size for entry in manifest.files}
    rows = []
    for variant in manifest.variants:
        facts = [f"maps {_short(sum(sizes[path] for path in variant.weights))}B of weights"]
        if variant.linear_bytes:
            facts.append(f"reads {_short(variant.linear_bytes)}B of them a step")
        facts.append(f"cache {_short(_token_bytes(variant))}B a token")
        if variant.precision == manifest.default_precision:
            facts.append("default")
        rows.append((f"{variant.precision} for {variant.target}", ", ".join(facts)))
        recipe = ", ".join(
            f"{key} {_plain(value)}" for key, value in variant.recipe.items() if value not in ("", [], ())
        )
        if recipe:
            rows.append(("", recipe))
    return rows


def _origin_rows(manifest: Manifest) -> list[tuple[str, str]]:
    golden = "yes" if manifest.golden else f"none. {manifest.golden_absent_because}".strip()
    total = sum(entry.size for entry in manifest.files)
    rows = [
        ("golden logits", golden),
        ("source", f"{manifest.source.name} ({manifest.source.kind})"),
        ("files", f"{len(manifest.files)}, {_short(total)}B"),
    ]
    if manifest.created:
        rows.append(("created", manifest.created))
    if manifest.tools:
        rows.append(("made with", ", ".join(f"{name} {version}" for name, version in manifest.tools.items())))
    return rows


def _file_lines(manifest: Manifest) -> list[str]:
    width = max((len(entry.path) for entry in manifest.files), default=0)
    return [f"{entry.path:<{width}}  {entry.size:>15,}  {entry.sha256}\n" for entry in manifest.files]


def _token_bytes(variant: Variant) -> int:
    """Bytes of KV cache that a token takes."""
    return sum(tensor.slot_bytes for tensor in variant.cache_tensors)


def _plain(value: object) -> str:
    """A recipe's value as text; lists shortened to their number."""
    if isinstance(value, list | tuple):
        return f"{len(value)} tensors" if len(value) > 3 else ", ".join(map(str, value))
    return str(value)


def _short(number: float) -> str:
    """A number with a decimal prefix, ready for a unit: 134.5 M."""
    for prefix in ("", "k", "M", "G"):
        if number < 1000:
            return f"{number:.4g} {prefix}"
        number /= 1000
    return f"{number:.4g} T"


INSPECT = Command(
    name="inspect",
    help="show what a bundle holds",
    description="Show the model, precisions, targets, sizes and origin of a bundle, from its manifest.",
    configure=_configure,
    run=_run,
)
