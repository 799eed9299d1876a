"""GrammarCompiler: grammars compiled beside the engine's thread, and kept for the next request that asks alike."""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from ops.errors import Overloaded
from rtcore.decoding.grammar.check_process import CheckProcess
from rtcore.decoding.grammar.checker import probe
from rtcore.decoding.grammar.limits import CHECK_SECONDS
from rtcore.decoding.grammar.source import GrammarError, new_matcher
from rtcore.decoding.grammar.spec import StructuredOutputs
from rtcore.decoding.grammar.state import GrammarState
from rtcore.decoding.grammar.turns import Turns
from rtcore.decoding.grammar.vocabulary import GrammarVocabulary, LoadVocabulary

MAX_GRAMMARS = 256
MAX_BYTES = 256 << 20
_WORKERS = 2
_MOST_PENDING = 256
_MOST_OF_ONE_TENANT = 64
_BYTES_A_CHARACTER = 64


@dataclass(frozen=True)
class Grammar:
    """A compiled grammar.

    matcher: at its beginning; it is only ever copied. size: about how many bytes it takes.
    """

    matcher: Any
    size: int

    def start(self, spec: StructuredOutputs, stop_ids: frozenset[int], vocab_size: int) -> GrammarState:
        """The state of a sequence that has generated nothing; see GrammarState."""
        return GrammarState(self.matcher.deep_copy(), spec, stop_ids, vocab_size)


@dataclass(eq=False)
class _Job:
    """A specification that was asked for: by how many that still wait, and of which tenants.

    begun: held from when a thread begins to compile it. Who asks for it then puts it into the queue once more.
    """

    kind: str
    source: str
    future: Future[Grammar] = field(default_factory=Future)
    waiting: int = 0
    tenants: set[str] = field(default_factory=set)
    begun: threading.Lock = field(default_factory=threading.Lock)


class GrammarCompiler:
    """Compiles in up to two threads, each with a process that tries the grammar first. Tenants take turns.

    Equal specifications are compiled once, and what came of them, a refusal too, is kept: up to `max_grammars`
    of them and about `max_bytes`, those that were not asked for the longest go first. Used by one thread.
    """

    def __init__(
        self,
        load: LoadVocabulary,
        *,
        max_grammars: int = MAX_GRAMMARS,
        max_bytes: int = MAX_BYTES,
        seconds: float = CHECK_SECONDS,
    ) -> None:
        """seconds: for trying one grammar. load: the model's vocabulary and its tokenizer's function, called
        once when the first grammar comes.
        """
        self._load = load
        self._max_grammars = max_grammars
        self._max_bytes = max_bytes
        self._seconds = seconds
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._loaded: tuple[GrammarVocabulary, Any] | None = None
        self._local = threading.local()
        self._checkers: list[CheckProcess] = []
        self._cache: OrderedDict[bytes, _Job] = OrderedDict()
        self._turns: Turns[_Job] = Turns()
        self.compiled = 0

    def __len__(self) -> int:
        return len(self._cache)

    def compile(self, spec: StructuredOutputs, tenant: str = "") -> Future[Grammar]:
        """The grammar of a specification; the future raises GrammarError where there is none, or ResourceError.

        Raises Overloaded when too many others are still being compiled, of all tenants or of this one.
        """
        job = self._cache.get(spec.key)
        if job is None or (job.future.done() and _passing(job.future)):
            self._admit(tenant)
            job = self._cache[spec.key] = _Job(spec.kind, spec.source)
            self.compiled += 1
        self._cache.move_to_end(spec.key)
        if not job.future.done():
            job.waiting += 1
            if tenant not in job.tenants:
                job.tenants.add(tenant)
                self._turns.put(tenant, job)
                self._threads().submit(self._work)
        self._evict()
        return job.future

    def leave(self, spec: StructuredOutputs, future: Future[Grammar]) -> None:
        """One that asked does not wait any longer; what nobody waits for is not begun."""
        job = self._cache.get(spec.key)
        if job is None or job.future is not future or future.done():
            return
        job.waiting -= 1
        if job.waiting == 0 and self._turns.drop(job) and future.cancel():
            del self._cache[spec.key]

    def _admit(self, tenant: str) -> None:
        pending = [job for job in self._cache.values() if not job.future.done()]
        if len(pending) >= _MOST_PENDING or sum(tenant in job.tenants for job in pending) >= _MOST_OF_ONE_TENANT:
            raise Overloaded("Too many grammars are being compiled.", remedy="Try again later.")

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="grammar")
        return self._pool

    def _work(self) -> None:
        """Compile what comes next; nothing, where it was begun as another tenant's or nobody waits any longer."""
        job = self._turns.take()
        if job is None or not (job.begun.acquire(blocking=False) and job.future.set_running_or_notify_cancel()):
            return
        try:
            job.future.set_result(self._compile(job.kind, job.source))
        except BaseException as error:
            job.future.set_exception(error)

    def _compile(self, kind: str, source: str) -> Grammar:
        vocabulary, tokenizer = self._vocabulary()
        checker: CheckProcess | None = getattr(self._local, "checker", None)
        if checker is None:
            checker = self._local.checker = CheckProcess(vocabulary, self._seconds)
            self._checkers.append(checker)
        size = checker.check(kind, source)
        matcher = new_matcher(tokenizer, kind, source)
        # What the first tokens need is worked out once, for all sequences that start here.
        probe(matcher.deep_copy(), len(vocabulary.tokens))
        return Grammar(matcher, max(size, _BYTES_A_CHARACTER * len(source)))

    def _vocabulary(self) -> tuple[GrammarVocabulary, Any]:
        with self._lock:
            if self._loaded is None:
                vocabulary, encode = self._load()
                self._loaded = vocabulary, vocabulary.tokenizer(encode)
            return self._loaded

    def _evict(self) -> None:
        """Let the oldest go until the rest is within bounds; those that are still being compiled stay."""
        used = sum(_size(job.future) for job in self._cache.values())
        for key, job in list(self._cache.items()):
            if len(self._cache) <= self._max_grammars and used <= self._max_bytes:
                return
            if job.future.done():
                used -= _size(job.future)
                del self._cache[key]

    def close(self) -> None:
        """End the threads and processes; what is being compiled is lost. Safe to call twice."""
        pool, self._pool = self._pool, None
        while (job := self._turns.take()) is not None:
            job.future.cancel()
        for checker in self._checkers:
            checker.close()
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)
        for checker in self._checkers:
            checker.close()
        self._checkers.clear()
        self._cache.clear()


def _passing(future: Future[Grammar]) -> bool:
    """Whether a future came to an error that has nothing to do with its grammar."""
    error = future.exception()
    return error is not None and not isinstance(error, GrammarError)


def _size(future: Future[Grammar]) -> int:
    return future.result().size if future.done() and future.exception() is None else 0
