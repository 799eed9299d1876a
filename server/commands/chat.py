"""``ortolan chat``: talk with a bundle's model in the terminal."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Generator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from ops.errors import ConfigError, InvalidRequest
from rtcore.command import Command
from server.commands.options import add_engine_flags, add_sampling_flags, engine_settings, sampling_params
from server.commands.terminal import show

if TYPE_CHECKING:
    from rtcore import LLM, SamplingParams

_PROMPT = ">>> "
_HELP = """\
/help    show this
/reset   forget the conversation, but for the system message
/exit    leave (also: end of input, Ctrl-D)
Ctrl-C   ends an answer that is being written; at the prompt it leaves
"""


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="directory that `ortolan export` wrote")
    parser.add_argument("--system", metavar="TEXT", help="system message that the conversation begins with")
    add_sampling_flags(parser, max_tokens=None)
    add_engine_flags(parser)


def _run(arguments: argparse.Namespace) -> int:
    # Loads onnxruntime, so not for --help.
    from rtcore import LLM

    with LLM(arguments.bundle, **engine_settings(arguments)) as llm:
        conversation = Conversation(llm, sampling_params(llm, arguments), arguments.system)
        # A model that cannot chat says so now, not after the first question.
        llm.frontend.chat.require()
        talk(conversation, sys.stdin.isatty())
    return 0


class Conversation:
    """The messages so far, and the model that answers them."""

    def __init__(self, llm: LLM, params: SamplingParams, system: str | None) -> None:
        self._llm = llm
        self._params = params
        self._opening = [{"role": "system", "content": system}] if system else []
        self.messages = list(self._opening)

    def reset(self) -> None:
        """Forget all but the system message."""
        self.messages = list(self._opening)

    def answer(self, question: str) -> Generator[str]:
        """The pieces of an answer. What was said until the iterator is closed stays in the conversation.

        Raises InvalidRequest or ContextLengthExceeded, and then the question is not kept.
        """
        messages = [*self.messages, {"role": "user", "content": question}]
        pieces = self._llm.stream_chat(messages, self._params, delta=True)
        said: list[str] = []
        try:
            for added in pieces:
                said.append(added.outputs[0].text)
                yield said[-1]
        finally:
            self.messages = [*messages, {"role": "assistant", "content": "".join(said)}]


def talk(conversation: Conversation, interactive: bool) -> None:
    """Read lines and answer them until the input ends.

    Interactive, errors in a request are shown and the talk goes on; otherwise they are raised.
    """
    ask = _asker(interactive)
    if interactive:
        show("Talk with the model. /help shows what else there is.\n")
    while (line := ask()) is not None:
        question = line.strip()
        match question:
            case "":
                continue
            case "/exit":
                return
            case "/help":
                show(_HELP)
            case "/reset":
                conversation.reset()
                show("The conversation begins anew.\n")
            case _:
                _answer(conversation, question, interactive)


def _answer(conversation: Conversation, question: str, interactive: bool) -> None:
    pieces = conversation.answer(question)
    try:
        with contextlib.closing(pieces):
            for piece in pieces:
                show(piece)
    except KeyboardInterrupt:
        if not interactive:
            raise
    except InvalidRequest as error:
        if not interactive:
            raise
        show(f"{error} /reset forgets the conversation.\n", sys.stderr)
        return
    show("\n")


def _asker(interactive: bool) -> Callable[[], str | None]:
    """Gives the next line of input, None at its end."""
    if not interactive:
        return _line_of_input
    with contextlib.suppress(ImportError):
        # Gives `input` line editing and a history, where Python has it.
        import_module("readline")

    def ask() -> str | None:
        try:
            return input(_PROMPT)
        except EOFError:
            show("\n")
            return None

    return ask


def _line_of_input() -> str | None:
    try:
        return sys.stdin.readline() or None
    except UnicodeDecodeError as error:
        raise ConfigError("Standard input is not UTF-8.", why=f"{error}.", remedy="Convert it first.") from error


CHAT = Command(
    name="chat",
    help="talk with a bundle's model in the terminal",
    description=(
        "Talk with the model of a bundle. Each line is a message; the model knows what was said before. "
        "Messages can also be piped in, one a line."
    ),
    configure=_configure,
    run=_run,
)
