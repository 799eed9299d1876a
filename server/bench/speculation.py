"""``ortolan bench speculation``: what drafts gain on text that repeats, and cost on text that does not."""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ops.errors import ConfigError
from rtcore.command import Command
from rtcore.config import EngineConfig
from server.bench.texts import FREE, REPEATING

if TYPE_CHECKING:
    from rtcore.engine import Engine
    from rtcore.text.frontend import TextFrontend

ROUNDS = 3
TOKENS = 96


class SpeculationFigure(msgspec.Struct, frozen=True):
    """Of one set of prompts.

    without_ms, with_ms: median milliseconds of a token. speedup: median over prompts and rounds of without / with;
    lowest, highest: of single prompts. accepted: the share of drafts that held. same: how many answers were equal,
    token for token.
    """

    texts: str
    prompts: int
    without_ms: float
    with_ms: float
    speedup: float
    lowest: float
    highest: float
    drafts: int
    accepted: float
    same: int


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="folder of the bundle")
    parser.add_argument("--precision", help="precision to measure; the bundle's default if not given")
    parser.add_argument("--speculation", default="ngram", metavar="NAME", help="who makes drafts (default ngram)")
    parser.add_argument("--draft-bundle", metavar="DIRECTORY", help="bundle of a smaller model that makes drafts")
    parser.add_argument("--max-drafts", type=int, default=8, metavar="N", help="drafts at a time (default 8)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"rounds to measure (default {ROUNDS})")
    parser.add_argument("--threads", type=int, help="threads; all cores of this process if not given")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def _run(arguments: argparse.Namespace) -> int:
    if arguments.rounds < 1:
        raise ConfigError(f"--rounds is {arguments.rounds}; it must be at least 1.", param="rounds")
    config = EngineConfig(
        precision=arguments.precision,
        threads=arguments.threads,
        speculation=arguments.speculation,
        draft_bundle=arguments.draft_bundle,
        max_drafts=arguments.max_drafts,
    )
    figures = measure(arguments.bundle, config, arguments.rounds)
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(figures)).decode())
        return 0
    print("text         without         with   speed-up  (prompts)        drafts   held   same answers")
    for row in figures:
        print(
            f"{row.texts:10} {row.without_ms:6.2f} ms/t {row.with_ms:7.2f} ms/t {row.speedup:7.2f}  "
            f"({row.lowest:.2f} .. {row.highest:.2f}) {row.drafts:8} {row.accepted:6.0%} "
            f"{row.same:8} of {row.prompts}"
        )
    return 0


def measure(bundle: Path, config: EngineConfig, rounds: int) -> list[SpeculationFigure]:
    """Greedy answers with and without drafts in turns, one request at a time, in one engine."""
    from rtcore.bundle import Bundle
    from rtcore.loading import load_engine
    from rtcore.text.frontend import TextFrontend

    engine = load_engine(bundle, config)
    try:
        with Bundle.open(bundle, check="sizes") as opened:
            frontend = TextFrontend(opened, cache_tokens=engine.context_length)
        figures = []
        for name, texts in (("repeating", REPEATING), ("free", FREE)):
            prompts = [_encode(frontend, text, engine.manifest.text.chat_template is not None) for text in texts]
            figures.append(_measure_set(engine, name, prompts, rounds))
        return figures
    finally:
        engine.close()


def _encode(frontend: TextFrontend, text: str, chat: bool) -> list[int]:
    """The prompt as a conversation, where the model has a template."""
    if chat:
        return frontend.render_chat([{"role": "user", "content": text}])
    return frontend.encode(text)


def _measure_set(engine: Engine, name: str, prompts: list[list[int]], rounds: int) -> SpeculationFigure:
    from rtcore.decoding.params import SamplingParams
    from rtcore.request import EngineRequest
    from server.bench.single import Timed, run

    seconds: dict[bool, list[float]] = {False: [], True: []}
    speedups: list[list[float]] = [[] for _ in prompts]
    same = [True] * len(prompts)
    before = engine.stats()
    for number in range(rounds):
        for place, prompt in enumerate(prompts):
            found: dict[bool, Timed] = {}
            # Who goes first takes turns too: the second finds its prompt in the cache.
            for drafts in (False, True) if (number + place) % 2 else (True, False):
                params = SamplingParams(temperature=0, max_tokens=TOKENS, speculation=drafts)
                found[drafts] = run(engine, [EngineRequest("r", prompt, params)])[0]
                if len(found[drafts].tokens) > 1:
                    seconds[drafts].append(found[drafts].seconds_per_token)
            same[place] &= found[False].tokens == found[True].tokens
            if len(found[False].tokens) > 1:
                speedups[place].append(found[False].seconds_per_token / found[True].seconds_per_token)
    after = engine.stats()
    drafted = after.drafts - before.drafts
    each = [statistics.median(ratios) for ratios in speedups if ratios]
    without, with_ = (statistics.median(seconds[drafts]) * 1e3 for drafts in (False, True))
    return SpeculationFigure(
        texts=name,
        prompts=len(prompts),
        without_ms=without,
        with_ms=with_,
        speedup=statistics.median(ratio for ratios in speedups for ratio in ratios),
        lowest=min(each),
        highest=max(each),
        drafts=drafted,
        accepted=(after.drafts_accepted - before.drafts_accepted) / max(1, drafted),
        same=sum(same),
    )


SPECULATION = Command(
    name="speculation",
    help="what speculative decoding gains and costs",
    description=(
        "Answer prompts greedily with and without drafts, in turns in one engine, one request at a time: "
        f"{len(REPEATING)} whose answers repeat their prompt (editing) and {len(FREE)} whose answers do not. "
        "Compares the time of each token after the first, and the tokens."
    ),
    configure=_configure,
    run=_run,
)
