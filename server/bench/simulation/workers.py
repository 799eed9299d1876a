"""Executors for runs that know nothing of each other: processes of their own, or one after the other here."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from typing import Any


class InTurn(Executor):
    """Does each piece of work when it is submitted, in the calling process."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(function(*args, **kwargs))
        return future


def side_by_side(jobs: int) -> Executor:
    """An executor that does `jobs` pieces of work at once, each in a fresh process whose memory goes with it."""
    if jobs == 1:
        return InTurn()
    return ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), max_tasks_per_child=1)
