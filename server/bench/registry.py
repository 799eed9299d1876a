"""The sub-commands of ``ortolan bench``; each is one file beside this one that defines a Command."""

from __future__ import annotations

from rtcore.command import Command
from server.bench.gpu import GPU
from server.bench.run import RUN
from server.bench.sampler import SAMPLER
from server.bench.scheduler import SCHEDULER
from server.bench.simulate import SIMULATE

BENCHMARKS: tuple[Command, ...] = (RUN, GPU, SAMPLER, SCHEDULER, SIMULATE)
