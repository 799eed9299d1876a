"""The way from a checkpoint to a bundle: open, capture, lower each precision, write, verify, publish."""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from export.checkpoint.base import Checkpoint
from export.checkpoint.huggingface import refuse_quantised
from export.checkpoint.open import is_gguf, open_checkpoint, open_config, open_random, seed_of
from export.kernels.bundle import write_kernels
from export.progress import Reporter
from export.recipe import Bits, Recipe, recipe_for
from export.sample_graph import sample_graph
from export.targets import CPU, Target
from export.task import check_task
from export.text_info import text_info
from export.writer import BundleWriter, graph_bytes
from models.registry import family_of
from ops.errors import ConfigError
from rtcore.config import EngineConfig
from rtcore.golden import encode
from rtcore.manifest import GOLDEN_FILE, TOKENIZER_FOLDER, Manifest, Source, Variant
from rtcore.verify import verify

if TYPE_CHECKING:
    from export.capture import CapturedModel
    from export.lowering import LoweredModel

TOOLS = ("ortolan", "torch", "triton", "transformers", "onnx", "onnx-ir", "onnxscript", "optimum", "gguf", "numpy")


@dataclass(frozen=True)
class ExportOptions:
    """What to export and how.

    weights: ``random:SEED``, or None for those of the checkpoint. context_length: None for the model's own.
    cache_dtype, head_bits: None for what each precision's
    recipe says. default_precision: None for int8 if it is exported,
    else the first.
    """

    source: Path
    output: Path
    precisions: tuple[str, ...] = ("int8",)
    targets: tuple[Target, ...] = (CPU,)
    group: int = 32
    symmetric: bool = True
    sensitive: tuple[str, ...] = ()
    head_bits: Bits | None = None
    cache_dtype: Literal["float32", "float16", "int8"] | None = None
    name: str | None = None
    context_length: int | None = None
    weights: str | None = None
    skeleton: bool = False
    verify: bool = False
    default_precision: str | None = None
    replace: bool = False

    def __post_init__(self) -> None:
        if len(set(self.precisions)) != len(self.precisions) or not self.precisions:
            raise ConfigError("Each precision is named once, and one at least.", param="--precision")
        if self.default_precision is not None and self.default_precision not in self.precisions:
            raise ConfigError(
                f"The default precision {self.default_precision!r} is not among those exported.",
                remedy=f"Choose from {', '.join(self.precisions)}.",
                param="--default-precision",
            )
        if self.skeleton and (self.verify or self.weights):
            raise ConfigError(
                "A skeleton has no weights, so --skeleton goes with neither --verify nor --weights.",
                remedy="Pass --weights to `ortolan fill` instead.",
                param="--skeleton",
            )
        if self.weights is not None:
            seed_of(self.weights)
        for param, text in (("--out", str(self.output)), ("--name", self.name or _model_name(self.source))):
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise ConfigError(f"{text!r} is not UTF-8.", remedy="Choose another name.", param=param) from error

    def recipes(self) -> list[tuple[Recipe, Target]]:
        """The recipe of each precision for each target that has it.

        Raises ConfigError for an unknown precision or group, for a precision that none of the targets has, and for
        a type of cache that a CPU does not have, or that only GPUs would be given, which choose it themselves.
        """
        chosen = []
        for precision in self.precisions:
            recipe = recipe_for(
                precision,
                group=self.group,
                symmetric=self.symmetric,
                sensitive=self.sensitive,
                head_bits=self.head_bits,
            )
            found = [(recipe.for_target(target.name), target) for target in self.targets]
            present = [(own, target) for own, target in found if own is not None]
            if not present:
                raise ConfigError(
                    f"The precision {precision} is none of {', '.join(target.name for target in self.targets)}.",
                    why="A CPU computes fp32, int8, int4 and native, a GPU bf16, fp16, int8 and int4.",
                    param="--precision",
                )
            chosen += present
        if self.cache_dtype not in (None, "int8") and all(target != CPU for _, target in chosen):
            raise ConfigError(
                f"A GPU's cache cannot be chosen to be {self.cache_dtype}.",
                why="It has the type of the precision's activations, or int8.",
                remedy="Leave --cache-dtype out, or give int8.",
                param="--cache-dtype",
            )
        return [(self._with_cache(recipe, target), target) for recipe, target in chosen]

    def _with_cache(self, recipe: Recipe, target: Target) -> Recipe:
        """The recipe with the type of cache that the user chose, where the target has a choice."""
        if self.cache_dtype is None or (target != CPU and self.cache_dtype != "int8"):
            return recipe
        if target == CPU and self.cache_dtype == "int8":
            raise ConfigError(
                "A CPU has no cache of int8.",
                remedy="Export for the CPU with --cache-dtype float16, and for a GPU apart from it.",
                param="--cache-dtype",
            )
        return dataclasses.replace(recipe, cache_dtype=self.cache_dtype)

    @property
    def chosen_default(self) -> str:
        return self.default_precision or ("int8" if "int8" in self.precisions else self.precisions[0])


def export_bundle(options: ExportOptions, report: Reporter) -> Manifest:
    """Write the bundle. Raises CheckpointError, UnsupportedModel, ConfigError or OutOfDisk, leaving nothing."""
    recipes = options.recipes()
    with BundleWriter(options.output, options.replace) as writer, ExitStack() as opened:
        checkpoint, config, folder = _open(options)
        if checkpoint is not None:
            opened.callback(checkpoint.close)
        family = family_of(config)
        check_task(config, folder)
        report.stage(f"Capturing {config['model_type']} from {options.source}")
        captured = _capture(config, options)
        if checkpoint is None:
            checkpoint = open_random(options.weights or "random:0", config, captured.shapes, folder)
        lowered = [_lower(captured, recipe, checkpoint, target) for recipe, target in recipes]
        _write_tokenizer(options, checkpoint, writer.folder / TOKENIZER_FOLDER)
        text = text_info(writer.folder / TOKENIZER_FOLDER, config, family)
        writer.adopt(TOKENIZER_FOLDER)
        variants = _write_model(writer, captured, lowered, recipes, config, options, report)
        absent = _golden_obstacle(captured, lowered, options)
        manifest = Manifest(
            name=options.name or _model_name(options.source),
            family=captured.family,
            version="",
            source=_source(checkpoint, options),
            dimensions=captured.dimensions,
            variants=tuple(variants),
            default_precision=options.chosen_default,
            text=text,
            files=(),
            golden=not absent,
            golden_absent_because=absent,
            skeleton=options.skeleton,
            tools=tool_versions(),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        if options.verify and absent:
            report.stage(f"No reference run: {absent}")
        elif options.verify:
            _write_golden(writer, captured, lowered, checkpoint, config, report)
        replayed = not absent and any(target == CPU for _, target in recipes)
        return writer.finish(manifest, partial(_replay, report) if replayed else None)


def _open(options: ExportOptions) -> tuple[Checkpoint | None, dict[str, Any], Path | None]:
    """The checkpoint (None where its weights are not asked for), its config, and its folder if it is one."""
    if options.weights is None and not options.skeleton:
        checkpoint = open_checkpoint(options.source)
        return checkpoint, checkpoint.config, None if is_gguf(options.source) else options.source
    config, folder = open_config(options.source)
    refuse_quantised(config)
    return None, config, folder


def _capture(config: dict[str, Any], options: ExportOptions) -> CapturedModel:
    from export.capture import capture

    return capture(config, options.context_length)


def _lower(captured: CapturedModel, recipe: Recipe, checkpoint: Checkpoint, target: Target) -> LoweredModel:
    from export.lowering import lower

    return lower(captured, recipe, captured.reader(checkpoint), target.name)


def _write_model(
    writer: BundleWriter,
    captured: CapturedModel,
    lowered: list[LoweredModel],
    recipes: list[tuple[Recipe, Target]],
    config: dict[str, Any],
    options: ExportOptions,
    report: Reporter,
) -> list[Variant]:
    """Weights (or their description), graphs and kernels of every precision."""
    places = [
        writer.place(f"weights/{recipe.precision}", model.tensors)
        for (recipe, _), model in zip(recipes, lowered, strict=True)
    ]
    if options.skeleton:
        writer.write_skeleton(captured.shapes, captured.aliases, captured.constants, config)
    else:
        with report.writing(f"Writing {', '.join(options.precisions)}", writer.weight_bytes) as progress:
            writer.write_weights(progress)
    sample = "graphs/cpu.sample.onnx"
    writer.write(sample, sample_graph(captured.dimensions.vocab_size))
    variants = []
    write_kernels(writer, [(model, target) for model, (_, target) in zip(lowered, recipes, strict=True)], report)
    for (recipe, target), model, where in zip(recipes, lowered, places, strict=True):
        path = f"graphs/{recipe.precision}.{target.name}.step.onnx"
        writer.write(path, graph_bytes(model.step, where))
        variants.append(
            Variant(
                precision=recipe.precision,
                target=target.name,
                step=path,
                weights=tuple(sorted({place.path for place in where.values()})),
                cache_groups=model.cache_groups,
                cache_tensors=model.cache_tensors,
                sample=sample,
                recipe=model.recipe,
                linear_bytes=model.linear_bytes,
                expert_bytes=model.expert_bytes,
                architectures=tuple(architecture.name for architecture in target.architectures),
            )
        )
    return variants


def _write_golden(
    writer: BundleWriter,
    captured: CapturedModel,
    lowered: list[LoweredModel],
    checkpoint: Checkpoint,
    config: dict[str, Any],
    report: Reporter,
) -> None:
    from export.verify import golden

    tokenizer = writer.folder / TOKENIZER_FOLDER
    writer.write(GOLDEN_FILE, encode(golden(captured, lowered, checkpoint, config, tokenizer, report.stage)))


def _replay(report: Reporter, folder: Path) -> None:
    """Run the bundle on the recorded prompts. Raises VerificationFailed when it leaves the bound."""
    report.stage("Comparing the bundle with transformers")
    found = verify(folder, EngineConfig())
    for replay in found.replays:
        report.stage(f"{replay.title}: logits within {replay.deviation:.2g}, {replay.bound:.2g} allowed")
    found.require()


def _write_tokenizer(options: ExportOptions, checkpoint: Checkpoint, folder: Path) -> None:
    """Write the source's tokenizer; a .gguf file's comes from its metadata, also where the weights do not."""
    if not is_gguf(options.source) or checkpoint.kind == "gguf":
        checkpoint.write_tokenizer(folder)
        return
    with closing(open_checkpoint(options.source)) as source:
        source.write_tokenizer(folder)


def _golden_obstacle(captured: CapturedModel, lowered: list[LoweredModel], options: ExportOptions) -> str:
    """Why the bundle gets no golden record; empty if it gets one."""
    if not options.verify:
        return "It was exported without --verify."
    from export.verify import obstacle

    return obstacle(captured, lowered)


def _source(checkpoint: Checkpoint, options: ExportOptions) -> Source:
    """Where the weights come from; a skeleton does not know yet."""
    if options.skeleton:
        return Source("huggingface", "", "")
    return Source(checkpoint.kind, checkpoint.name, checkpoint.sha256())


def _model_name(source: Path) -> str:
    return source.resolve().name.removesuffix(".gguf")


def tool_versions() -> dict[str, str]:
    """The versions of what made a bundle, as far as it is installed."""
    found = {}
    for name in TOOLS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
