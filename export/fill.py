"""``ortolan fill``: completes a skeleton with weights, on a machine that needs no torch."""

from __future__ import annotations

import argparse
from contextlib import closing
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

import msgspec

from export.checkpoint.base import Checkpoint
from export.checkpoint.open import RANDOM, is_gguf, open_checkpoint, open_random
from export.parameters import checked_reader
from export.pipeline import tool_versions
from export.progress import Reporter
from export.skeleton import CONSTANTS_FILE, SKELETON_FILE, Skeleton, plan_of, read_skeleton
from export.staging import size_text
from export.termination import clean_termination
from export.writer import BundleWriter
from ops.errors import CheckpointError, ConfigError, MissingExtra
from rtcore.bundle import Bundle
from rtcore.command import Command
from rtcore.manifest import MANIFEST_FILE, Manifest, Source

DESCRIPTION = """\
Add the weights to a skeleton that `ortolan export --skeleton` made, possibly on another machine. Reads the
checkpoint and quantises as the skeleton says; needs no torch (a .gguf file needs the package gguf).

  ortolan fill ./model --weights ./Llama-3.1-8B-Instruct
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``ortolan fill``."""
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="the skeleton")
    parser.add_argument(
        "--weights", required=True, metavar="SOURCE", help="folder of the checkpoint, .gguf file, or random:SEED"
    )
    parser.add_argument(
        "--out",
        "--output",
        "-o",
        dest="output",
        type=Path,
        metavar="DIR",
        help="write here instead of replacing BUNDLE",
    )


def run(arguments: argparse.Namespace) -> int:
    """Fill and say what was made."""
    with clean_termination():
        manifest = fill(arguments.bundle, arguments.weights, arguments.output, Reporter())
    size = size_text(sum(entry.size for entry in manifest.files))
    target = arguments.output or arguments.bundle
    print(f"{target}: bundle of {manifest.name} ({manifest.family}), {size}, {manifest.version}")
    return 0


def fill(folder: Path, weights: str, output: Path | None, report: Reporter) -> Manifest:
    """Write the complete bundle in the skeleton's place, or to `output`.

    Raises ConfigError when the bundle is no skeleton, BundleDamaged, CheckpointError, OutOfDisk.
    """
    with Bundle.open(folder) as bundle:
        manifest = bundle.manifest
        if not manifest.skeleton:
            raise ConfigError(
                f"{folder} is complete already.",
                why="Only a skeleton can be filled.",
                remedy="Make one with: ortolan export SOURCE --out DIR --skeleton",
                param="BUNDLE",
            )
        skeleton, constants = read_skeleton(bundle.path)
        writing = BundleWriter(output or folder, replace=output is None)
        with writing as writer, closing(_open(weights, skeleton)) as checkpoint:
            tensor = checked_reader(checkpoint.tensor, checkpoint.names(), skeleton.parameters, skeleton.aliases)
            shards = plan_of(bundle.path, skeleton, constants, tensor)
            total = sum(shard.size for shard in shards)
            with report.writing("Writing weights", total) as progress:
                writer.write_weights(progress, shards)
            for entry in manifest.files:
                if entry.path not in (SKELETON_FILE, CONSTANTS_FILE, MANIFEST_FILE):
                    writer.write(entry.path, bundle.file(entry.path).read_bytes())
            return writer.finish(
                msgspec.structs.replace(
                    manifest,
                    skeleton=False,
                    source=Source(checkpoint.kind, checkpoint.name, checkpoint.sha256()),
                    tools={**manifest.tools, **tool_versions()},
                    created=datetime.now(UTC).isoformat(timespec="seconds"),
                )
            )


def _open(weights: str, skeleton: Skeleton) -> Checkpoint:
    """The checkpoint to fill from. Raises CheckpointError when it is of another model type."""
    if weights.startswith(RANDOM):
        return open_random(weights, skeleton.config, skeleton.parameters, None)
    source = Path(weights)
    if is_gguf(source) and find_spec("gguf") is None:
        raise MissingExtra(
            "Reading a .gguf file needs the package gguf.", remedy="Install it with: pip install gguf"
        )
    checkpoint = open_checkpoint(source)
    found, wanted = checkpoint.config.get("model_type"), skeleton.config.get("model_type")
    if found != wanted:
        checkpoint.close()
        raise CheckpointError(
            f"{source} is of the type {found!r}, the skeleton of {wanted!r}.",
            remedy="Name the checkpoint that the skeleton was made for.",
            param="--weights",
        )
    return checkpoint


FILL = Command(
    name="fill",
    help="add the weights to a skeleton",
    description=DESCRIPTION,
    configure=configure,
    run=run,
)
