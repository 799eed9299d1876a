"""The sub-commands of ``ortolan bench``; each is one file beside this one that defines a Command."""

from __future__ import annotations

from rtcore.command import Command
from server.bench.compare.command import COMPARE
from server.bench.perplexity import PERPLEXITY
from server.bench.profile import PROFILE
from server.bench.run import RUN
from server.bench.sampler import SAMPLER
from server.bench.scaling import SCALING
from server.bench.scheduler import SCHEDULER
from server.bench.simulate import SIMULATE

BENCHMARKS: tuple[Command, ...] = (RUN, PROFILE, PERPLEXITY, COMPARE, SCALING, SAMPLER, SCHEDULER, SIMULATE)
