"""``ortolan export``: its arguments and what it prints. Heavy libraries load when it runs."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path

from export.recipe import GROUPS
from ops.errors import MissingExtra
from rtcore.command import Command

NEEDED = ("torch", "transformers", "optimum", "onnx", "onnx_ir", "onnxscript", "gguf")

DESCRIPTION = """\
Make a bundle of a model: a folder with ONNX graphs, weights, tokenizer and manifest, which `ortolan serve`,
`ortolan generate` and the others run without torch. SOURCE is a folder as Hugging Face writes it (config.json,
safetensors, tokenizer) or one .gguf file.

  ortolan export ./SmolLM2-135M-Instruct --out smollm2
  ortolan export model.Q4_K_M.gguf --out model --precision fp32,int8 --verify
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``ortolan export``."""
    parser.add_argument(
        "source", type=Path, metavar="SOURCE", help="folder of a Hugging Face checkpoint, or .gguf file"
    )
    parser.add_argument(
        "--out",
        "--output",
        "-o",
        dest="output",
        type=Path,
        required=True,
        metavar="DIR",
        help="the bundle to write",
    )
    parser.add_argument(
        "--precision",
        default="int8",
        metavar="LIST",
        help="precisions to export, separated by commas: int8, int4; for the CPU also fp32 and native, which keeps "
        "the codes of a quantised .gguf file; for GPUs also bf16 and fp16 (default: int8)",
    )
    parser.add_argument(
        "--target",
        default="cpu",
        metavar="LIST",
        help="what to export for, separated by commas: cpu, cuda (kernels for all known GPUs), or single ones "
        "as in cuda:90 (default: cpu)",
    )
    parser.add_argument(
        "--default-precision",
        metavar="NAME",
        help="the precision served unless one is asked for (default: int8 if exported, else the first)",
    )
    parser.add_argument(
        "--group", type=int, default=32, choices=GROUPS, help="weights that share a scale (default: 32)"
    )
    parser.add_argument(
        "--asymmetric", action="store_true", help="quantise with zero points: somewhat closer, somewhat larger"
    )
    parser.add_argument(
        "--sensitive",
        action="append",
        default=[],
        metavar="PATTERN",
        help="keep weights whose names match in 8 bits, as in 'model.layers.0.*' (may be repeated)",
    )
    parser.add_argument(
        "--head-bits",
        type=int,
        choices=(4, 8),
        help="bits of head and embedding (default: 8, or those of the file for native)",
    )
    parser.add_argument(
        "--cache-dtype",
        choices=("float32", "float16", "int8"),
        help="type of the KV cache: on a CPU float32 or float16 (default: float32 for fp32, else float16), on a "
        "GPU int8 (default: that of the activations)",
    )
    parser.add_argument("--name", help="the model's name in the bundle (default: that of SOURCE)")
    parser.add_argument(
        "--context", type=int, metavar="TOKENS", help="longest prompt and answer together (default: the model's)"
    )
    parser.add_argument(
        "--weights", metavar="random:SEED", help="use random weights: only SOURCE's config.json is needed"
    )
    parser.add_argument(
        "--skeleton", action="store_true", help="leave the weights out; `ortolan fill` adds them on another machine"
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="compare logits with transformers and record them, so that `ortolan verify` can replay them",
    )
    parser.add_argument("--force", action="store_true", help="replace a bundle that is at DIR already")


def run(arguments: argparse.Namespace) -> int:
    """Export and say what was made. Raises MissingExtra without the export extra."""
    require_export()
    from export.pipeline import ExportOptions, export_bundle
    from export.progress import Reporter
    from export.staging import size_text
    from export.targets import targets_of
    from export.termination import clean_termination

    options = ExportOptions(
        source=arguments.source,
        output=arguments.output,
        precisions=tuple(part.strip() for part in arguments.precision.split(",")),
        targets=targets_of(arguments.target),
        group=arguments.group,
        symmetric=not arguments.asymmetric,
        sensitive=tuple(arguments.sensitive),
        head_bits=arguments.head_bits,
        cache_dtype=arguments.cache_dtype,
        name=arguments.name,
        context_length=arguments.context,
        weights=arguments.weights,
        skeleton=arguments.skeleton,
        verify=arguments.verify,
        default_precision=arguments.default_precision,
        replace=arguments.force,
    )
    with clean_termination():
        manifest = export_bundle(options, Reporter())
    size = size_text(sum(entry.size for entry in manifest.files))
    what = "skeleton" if manifest.skeleton else "bundle"
    precisions = ", ".join(variant.precision for variant in manifest.variants)
    print(
        f"{options.output}: {what} of {manifest.name} ({manifest.family}), {precisions}, {size}, {manifest.version}"
    )
    if manifest.skeleton:
        print(f"Complete it with: ortolan fill {options.output} --weights CHECKPOINT")
    else:
        print(f"Serve it with: ortolan serve {options.output}")
    return 0


def require_export() -> None:
    """Raise MissingExtra, naming the extra, unless everything that an export needs is installed."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise MissingExtra(
            "`ortolan export` needs libraries that serving does not.",
            why=f"Not installed: {', '.join(missing)}.",
            remedy="Install them with: pip install 'ortolan[export]'",
        )


EXPORT = Command(
    name="export",
    help="make a bundle of a checkpoint",
    description=DESCRIPTION,
    configure=configure,
    run=run,
)
