"""The sub-commands of ``ortolan bench``; each is one file beside this one that defines a Command."""

from __future__ import annotations

from rtcore.command import Command
from server.bench.compare.command import COMPARE
from server.bench.gpu import GPU
from server.bench.grammar import GRAMMAR
from server.bench.http import HTTP
from server.bench.perplexity import PERPLEXITY
from server.bench.profile import PROFILE
from server.bench.run import RUN
from server.bench.sampler import SAMPLER
from server.bench.scaling import SCALING
from server.bench.scheduler import SCHEDULER
from server.bench.simulate import SIMULATE
from server.bench.speculation import SPECULATION

BENCHMARKS: tuple[Command, ...] = (
    RUN,
    SAMPLER,
    SCHEDULER,
    SIMULATE,
    GRAMMAR,
    SPECULATION,
    PROFILE,
    PERPLEXITY,
    COMPARE,
    SCALING,
    GPU,
    HTTP,
)
