"""GrammarGate: requests that wait for their grammar before they are queued."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait

from ops.errors import EngineError, OrtolanError
from rtcore.decoding.grammar.compiler import Grammar, GrammarCompiler
from rtcore.decoding.grammar.source import GrammarError
from rtcore.decoding.grammar.spec import StructuredOutputs
from rtcore.sequence import Sequence


class GrammarGate:
    """Gives sequences the state of their grammar. Those whose grammar is not compiled yet wait here, and in no
    queue, so that others go on. Used by the engine's thread."""

    def __init__(self, compiler: GrammarCompiler, stop_ids: frozenset[int], vocab_size: int) -> None:
        """stop_ids: of the model."""
        self._compiler = compiler
        self._stop_ids = stop_ids
        self._vocab_size = vocab_size
        self._waiting: dict[Sequence, Future[Grammar]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._waiting)

    def enter(self, sequence: Sequence) -> bool:
        """Whether a new sequence has to wait. Raises InvalidRequest when its grammar is known to be none, and what
        else compiling it came to."""
        spec = sequence.request.params.structured_outputs
        if spec is None:
            return False
        future = self._compiler.compile(spec, sequence.request.tenant)
        if not future.done():
            self._waiting[sequence] = future
            return True
        self._begin(sequence, spec, future)
        return False

    def _begin(self, sequence: Sequence, spec: StructuredOutputs, future: Future[Grammar]) -> None:
        try:
            sequence.decoding.grammar = future.result().start(spec, self._stop_ids, self._vocab_size)
        except GrammarError as error:
            raise spec.refusal(f"The {spec.kind.replace('_', ' ')} is not accepted.", why=f"{error}.") from error
        except OrtolanError:
            raise
        except Exception as error:
            # From the library, or from reading the tokenizer: it must not end the engine.
            what = "The request's grammar could not be compiled."
            raise EngineError(what, why=f"{type(error).__name__}: {error}.") from error

    def ready(self) -> list[tuple[Sequence, OrtolanError | None]]:
        """Sequences that need not wait any longer, with what is wrong with their grammar; they leave."""
        found: list[tuple[Sequence, OrtolanError | None]] = []
        for sequence, future in list(self._waiting.items()):
            spec = sequence.request.params.structured_outputs
            if not future.done() or spec is None:
                continue
            del self._waiting[sequence]
            try:
                self._begin(sequence, spec, future)
            except OrtolanError as error:
                found.append((sequence, error))
            else:
                found.append((sequence, None))
        return found

    def wait(self, seconds: float) -> None:
        """Wait until one of them need not any longer, or so long."""
        wait(self._waiting.values(), seconds, return_when=FIRST_COMPLETED)

    def discard(self, sequence: Sequence) -> bool:
        """Take a sequence out; False when it does not wait here."""
        future = self._waiting.pop(sequence, None)
        spec = sequence.request.params.structured_outputs
        if future is None or spec is None:
            return False
        self._compiler.leave(spec, future)
        return True

    def close(self) -> None:
        """Forget those that wait and end what compiles. Safe to call twice."""
        self._waiting.clear()
        self._compiler.close()
