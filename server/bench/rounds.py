"""The rounds of ``ortolan bench run``: what is driven, what it took, and the figures that come of it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import msgspec

from rtcore.bundle import Bundle
from rtcore.config import EngineConfig
from rtcore.manifest import Manifest, Variant
from server.bench.ceilings import Ceilings
from server.bench.figure import Figure, FigureRecord
from server.bench.floors import Floors
from server.bench.memory import peak_resident_bytes, proportional_bytes
from server.bench.sizes import SEQUENCES, Sizes
from server.bench.workload import Workload, load

MEBIBYTE = 2.0**20


class Samples(msgspec.Struct):
    """What the rounds gave: seconds and bytes, one value a round."""

    load: list[float] = []
    prefill: list[float] = []
    first_token: list[float] = []
    decode: dict[int, list[float]] = {}
    proportional: list[float] = []
    resident: list[float] = []


class Report(msgspec.Struct, frozen=True):
    """The JSON of ``ortolan bench run --json``."""

    bundle: str
    version: str
    precision: str
    threads: int
    rounds: int
    sizes: Sizes
    ceilings: Ceilings
    figures: list[FigureRecord]


def measure(path: Path, config: EngineConfig, rounds: int) -> tuple[Samples, Sizes, Manifest, Variant]:
    """Load and drive an engine `rounds` times; in each round an unmeasured pass comes first."""
    samples = Samples(decode={count: [] for count in SEQUENCES})
    bundle = Bundle.open(path, check="sizes")
    manifest, variant = bundle.manifest, bundle.variant(config.precision, config.target)
    bundle.close()
    for number in range(rounds):
        engine, seconds = load(path, config)
        with closing(engine):
            samples.load.append(seconds)
            sizes = Sizes.within(engine.context_length)
            workload = Workload(engine, seed=number)
            workload.first_token_seconds(sizes.prefill)
            samples.prefill.append(workload.first_token_seconds(sizes.prefill))
            samples.first_token.append(workload.first_token_seconds(sizes.prompt))
            for count in SEQUENCES:
                samples.decode[count].append(workload.decode_step_seconds(count, sizes.prompt, sizes.steps))
            samples.proportional.append(proportional_bytes())
            samples.resident.append(peak_resident_bytes())
    return samples, sizes, manifest, variant


def figures(samples: Samples, sizes: Sizes, floors: Floors) -> list[Figure]:
    """The samples as rates and times, each with its floor."""
    prefill = floors.prefill_seconds(sizes.prefill)
    context = sizes.prompt + sizes.steps // 2
    longest = max(sizes.prefill, max(SEQUENCES) * (sizes.prompt + sizes.steps))
    memory = floors.memory_bytes(1, longest) / MEBIBYTE
    rows = [
        Figure(
            f"prefill, {sizes.prefill} tokens",
            "tokens/s",
            tuple(sizes.prefill / seconds for seconds in samples.prefill),
            sizes.prefill / prefill,
            "operations / peak, or weights / bandwidth",
        )
    ]
    for count, seconds in samples.decode.items():
        rows.append(
            Figure(
                f"decode, {count} x {sizes.prompt} tokens",
                "tokens/s",
                tuple(count / value for value in seconds),
                count / floors.decode_seconds(count, context),
                "weights and cache / bandwidth, or operations / peak",
            )
        )
    rows += [
        Figure(
            f"first token, {sizes.prompt} tokens",
            "ms",
            tuple(1e3 * value for value in samples.first_token),
            1e3 * floors.prefill_seconds(sizes.prompt),
            "operations / peak, or weights / bandwidth",
        ),
        Figure(
            "load, its files hashed",
            "s",
            tuple(samples.load),
            floors.load_seconds(),
            "bytes of the bundle / bandwidth",
        ),
        Figure(
            "memory, PSS",
            "MiB",
            tuple(value / MEBIBYTE for value in samples.proportional),
            memory,
            "weights and written cache",
        ),
        Figure(
            "memory, peak RSS",
            "MiB",
            tuple(value / MEBIBYTE for value in samples.resident),
            memory,
            "weights and written cache",
        ),
    ]
    return rows
