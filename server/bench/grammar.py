"""``ortolan bench grammar``: what following a grammar costs a step."""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import msgspec

from ops.errors import ConfigError
from rtcore.command import Command
from rtcore.config import EngineConfig

ROUNDS = 5
TOKENS = 64
SEQUENCES = (1, 8)
_PROMPT = "List the planets of the solar system, with their sizes, as JSON."

GRAMMARS: dict[str, dict[str, Any]] = {
    "JSON schema": {
        "json": {
            "type": "array",
            "minItems": 40,
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "maxLength": 20},
                    "kind": {"enum": ["rock", "gas", "ice"]},
                    "radius": {"type": "number"},
                    "moons": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 3},
                },
                "required": ["name", "kind", "radius", "moons"],
                "additionalProperties": False,
            },
        }
    },
    "any JSON": {"json": {"type": "array", "minItems": 40}},
    "regex": {"regex": r"([A-Z][a-z]{2,12}: [0-9]{1,6} km\n){40}"},
    "Lark": {"grammar": 'start: sum\nsum: product ("+" product){60}\nproduct: NUM ("*" NUM)*\nNUM: /[0-9]{1,5}/'},
}
"""None of them can end within the tokens that are measured."""


class GrammarFigure(msgspec.Struct, frozen=True):
    """Median milliseconds of a step without and with the grammar, and the share that it adds."""

    grammar: str
    sequences: int
    without_ms: float
    with_ms: float
    overhead: float


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="folder of the bundle")
    parser.add_argument("--precision", help="precision to measure; the bundle's default if not given")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"rounds to measure (default {ROUNDS})")
    parser.add_argument("--threads", type=int, help="threads; all cores of this process if not given")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def _run(arguments: argparse.Namespace) -> int:
    if arguments.rounds < 1:
        raise ConfigError(f"--rounds is {arguments.rounds}; it must be at least 1.", param="rounds")
    figures = measure(arguments.bundle, arguments.precision, arguments.threads, arguments.rounds)
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(figures)).decode())
        return 0
    print("grammar      sequences   without      with    overhead")
    for figure in figures:
        print(
            f"{figure.grammar:12} {figure.sequences:9} {figure.without_ms:8.2f} ms {figure.with_ms:8.2f} ms "
            f"{figure.overhead:9.1%}"
        )
    print(f"\nThe median overhead is {statistics.median(figure.overhead for figure in figures):.1%} of a step.")
    return 0


def measure(bundle: Path, precision: str | None, threads: int | None, rounds: int) -> list[GrammarFigure]:
    """Steps with and without each grammar, in turns, so that both meet the same state of the machine."""
    from rtcore.bundle import Bundle
    from rtcore.decoding.grammar.spec import StructuredOutputs
    from rtcore.decoding.params import SamplingParams
    from rtcore.loading import load_engine
    from rtcore.request import EngineRequest
    from rtcore.text.frontend import TextFrontend
    from server.bench.single import run

    engine = load_engine(bundle, EngineConfig(precision=precision, threads=threads))
    try:
        with Bundle.open(bundle, check="sizes") as opened:
            prompt = TextFrontend(opened).encode(_PROMPT)
        figures = []
        for name, asked in GRAMMARS.items():
            spec = StructuredOutputs(**asked)
            for sequences in SEQUENCES:
                steps: dict[bool, list[float]] = {False: [], True: []}
                for number in range(rounds + 1):
                    for structured in (False, True):
                        params = SamplingParams(
                            seed=number,
                            max_tokens=TOKENS,
                            min_tokens=TOKENS,
                            structured_outputs=spec if structured else None,
                        )
                        requests = [EngineRequest(f"r{place}", prompt, params) for place in range(sequences)]
                        timed = run(engine, requests)
                        if number:  # the first round compiles
                            steps[structured] += timed[0].steps
                without, with_ = (statistics.median(steps[structured]) * 1e3 for structured in (False, True))
                figures.append(GrammarFigure(name, sequences, without, with_, with_ / without - 1))
        return figures
    finally:
        engine.close()


GRAMMAR = Command(
    name="grammar",
    help="what structured output costs a step",
    description=(
        f"Generate {TOKENS} tokens with and without a grammar, in turns, for {len(GRAMMARS)} grammars and "
        f"{' and '.join(map(str, SEQUENCES))} sequences at once, and compare the medians of the steps."
    ),
    configure=_configure,
    run=_run,
)
