"""Steps of one size, run twice: once with clocks around the host's stages, once with ONNX Runtime's profile."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from ops.errors import ConfigError
from rtcore.bundle import Bundle
from rtcore.config import EngineConfig
from rtcore.engine import Engine
from server.bench.ceilings import Ceilings, measure_apart
from server.bench.floors import Floors
from server.bench.profiling.operators import OperatorCost, StepSize, operator_costs
from server.bench.profiling.stages import StageClock
from server.bench.profiling.trace import read_runs
from server.bench.workload import Workload, load

_PREFIX = "ortolan"
_FASTER_SECONDS = 1e6


class ProfileReport(msgspec.Struct, frozen=True):
    """One step: `stages` are the host's in seconds, of which `run` holds the operators. profiled_seconds: what a
    step took while ONNX Runtime wrote its profile, which `operators` and between_seconds come from: the graph's
    time that no operator takes, from one to the next and around the first and the last.
    """

    bundle: str
    version: str
    precision: str
    threads: int
    size: StepSize
    steps: int
    ceilings: Ceilings
    step_seconds: float
    stages: dict[str, float]
    profiled_seconds: float
    between_seconds: float
    operators: list[OperatorCost]


def profile(
    path: Path,
    *,
    precision: str | None,
    threads: int,
    sequences: int,
    context: int,
    prefill: int | None,
    steps: int,
) -> ProfileReport:
    """Profile decode steps of `sequences` sequences that have `context` tokens in the middle of `steps` steps, or
    prefills of `prefill` tokens in one step each. Raises ConfigError where the engine's context is shorter."""
    longest = prefill or context + steps
    config = EngineConfig(
        precision=precision,
        threads=threads,
        check="sizes",
        max_sequences=max(sequences, 1),
        max_step_tokens=max(512, sequences, prefill or 0),
        target_step_ms=_FASTER_SECONDS,
        prefix_cache=False,
    )
    with Bundle.open(path, check="sizes") as bundle:
        manifest, variant = bundle.manifest, bundle.variant(precision, config.target)
    size = StepSize(1, prefill, prefill) if prefill else StepSize(sequences, 1, context)

    def drive(engine: Engine, started: Callable[[], None]) -> float:
        """Run the steps after some unmeasured ones; seconds of one step."""
        if longest > engine.context_length - 2 * sequences - 2:
            raise ConfigError(
                f"{longest} tokens of a sequence are too many here.",
                why=f"The engine's context is {engine.context_length} tokens, and a few are needed to begin.",
                remedy="Ask for a shorter --context or --prefill, or for fewer --steps.",
            )
        return _drive(Workload(engine, seed=0), size, steps, started)

    engine, _ = load(path, config)
    with closing(engine):
        clock = StageClock(engine)
        step_seconds = drive(engine, clock.start)
        ran, stages = clock.runs, clock.stages()
    with TemporaryDirectory(prefix="ortolan-profile-") as folder:
        engine, _ = load(path, msgspec.structs.replace(config, profile=str(Path(folder) / _PREFIX)))
        with closing(engine):
            profiled_seconds = drive(engine, lambda: None)
        runs = read_runs(next(Path(folder).glob(f"{_PREFIX}-{Path(variant.step).stem}_*.json")))[-ran:]
    ceilings = measure_apart(threads)
    operators = operator_costs(runs, size, Floors(manifest, variant, ceilings))
    return ProfileReport(
        bundle=manifest.name,
        version=manifest.version,
        precision=variant.precision,
        threads=threads,
        size=size,
        steps=ran,
        ceilings=ceilings,
        step_seconds=step_seconds,
        stages={name: seconds / ran for name, seconds in stages.items()},
        profiled_seconds=profiled_seconds,
        between_seconds=sum(run.seconds for run in runs) / len(runs) - sum(cost.seconds for cost in operators),
        operators=operators,
    )


def _drive(workload: Workload, size: StepSize, steps: int, started: Callable[[], None]) -> float:
    """Seconds of one of `steps` steps of `size`; `started` is called when all before them is done."""
    if size.queries > 1:
        workload.first_token_seconds(size.queries)
        started()
        return sum(workload.first_token_seconds(size.queries) for _ in range(steps)) / steps
    prompt = max(1, size.context - steps // 2)
    with workload.decoding(size.sequences, prompt, steps) as advance:
        started()
        began = time.perf_counter()
        tokens = advance(size.sequences * steps)
        return (time.perf_counter() - began) * size.sequences / tokens
