"""CheckProcess: the engine's side of the process that tries out grammars."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from typing import BinaryIO

import msgspec

from ops.errors import Overloaded, ResourceError
from rtcore.decoding.grammar.checker import MAX_FRAME_BYTES, Check, Checked, write_frame
from rtcore.decoding.grammar.limits import CHECK_SECONDS, WAIT_FACTOR
from rtcore.decoding.grammar.source import GrammarError
from rtcore.decoding.grammar.vocabulary import GrammarVocabulary

START_SECONDS = 120.0
_LAST_SECONDS = 1.0


class CheckProcess:
    """Checks one grammar at a time. The process starts with the first one, and anew after one that it did not
    survive. Used by one thread."""

    def __init__(self, vocabulary: GrammarVocabulary, seconds: float = CHECK_SECONDS) -> None:
        """seconds: of processor time for one grammar."""
        self._vocabulary = vocabulary
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Of the process, if there is one."""
        return None if self._process is None else self._process.pid

    def check(self, kind: str, source: str) -> int:
        """Try a grammar; returns about how many bytes it takes.

        Raises GrammarError when it is not to be compiled, Overloaded when the machine is too busy to tell, and
        ResourceError when the process cannot be had.
        """
        process = self._started()
        answer = self._ask(process, Check(kind, source, self._seconds), WAIT_FACTOR * max(1.0, self._seconds))
        if answer is None:
            if process.returncode == -signal.SIGXCPU:
                raise GrammarError(f"Compiling it takes longer than {self._seconds:g} s")
            raise GrammarError("Compiling it takes more memory than it may, or is nested too deeply")
        if answer.error:
            raise GrammarError(answer.error)
        return answer.size

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.close()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "rtcore.decoding.grammar.checker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
            )
        except OSError as error:
            raise ResourceError("The process that checks grammars cannot be started.", why=f"{error}.") from error
        process = self._process
        if self._ask(process, self._vocabulary, START_SECONDS) is None:
            raise ResourceError("The process that checks grammars does not start.", remedy="Try again later.")
        return process

    def _ask(self, process: subprocess.Popen[bytes], question: msgspec.Struct, seconds: float) -> Checked | None:
        """The answer; None when the process died of the question. Raises Overloaded when it takes too long.

        Without an answer the process is ended.
        """
        deadline = time.monotonic() + seconds
        if process.stdin is None or process.stdout is None:
            raise ResourceError("The process that checks grammars has no pipes.")
        try:
            write_frame(process.stdin, question)  # type: ignore[arg-type]
            size = int.from_bytes(_read(process.stdout, 4, deadline), "little")
            return msgspec.msgpack.decode(_read(process.stdout, min(size, MAX_FRAME_BYTES), deadline), type=Checked)
        except TimeoutError as error:
            self.close()
            raise Overloaded(
                "The request's grammar could not be compiled in time.",
                why=f"This machine is busy: {seconds:g} s were not enough.",
                remedy="Try again later.",
            ) from error
        except (OSError, EOFError, msgspec.DecodeError) as error:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LAST_SECONDS)
            self.close()
            if process.returncode in (-signal.SIGKILL, -signal.SIGTERM) and not isinstance(
                error, msgspec.DecodeError
            ):
                # Its own limits end it otherwise: this was the system, short of memory, or somebody's hand.
                raise Overloaded(
                    "The process that checks grammars was ended from outside.", remedy="Try again later."
                ) from error
            return None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the process. Safe to call twice."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


def _read(stream: BinaryIO | object, size: int, deadline: float) -> bytes:
    """Exactly so many bytes. Raises TimeoutError, and EOFError when the other side is gone."""
    descriptor: int = stream.fileno()  # type: ignore[union-attr]
    data = b""
    while len(data) < size:
        if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise TimeoutError
        part = os.read(descriptor, size - len(data))
        if not part:
            raise EOFError
        data += part
    return data
