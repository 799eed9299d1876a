"""The command ``ortolan``: finds its sub-commands, runs one, and turns errors into words and exit codes."""

from __future__ import annotations

import argparse
import errno
import os
import re
import sys
import traceback
from collections.abc import Sequence
from importlib import metadata
from typing import Any, NoReturn

from ops import errors
from server.commands.registry import DISTRIBUTION, Registry, missing_extra
from server.nearest import nearest

INTERNAL_ERROR = 1
INTERRUPTED = 130
CLOSED_PIPE = 141

# Exit codes of typed errors; the first class that fits counts. 2 is also what argparse exits with.
EXIT_CODES: tuple[tuple[type[errors.OrtolanError], int], ...] = (
    (errors.InvalidRequest, 2),
    (errors.ConfigError, 2),
    (errors.MissingExtra, 3),
    (errors.MissingLibrary, 3),
    (errors.VerificationFailed, 5),
    (errors.CheckpointError, 4),
    (errors.KernelError, 4),
    (errors.BundleError, 4),
    (errors.ResourceError, 6),
    (errors.EngineError, 7),
)

_FULL = (errno.ENOSPC, errno.EDQUOT)

_EPILOG = f"""\
exit codes:
  0    done
  {INTERNAL_ERROR}    an error in Ortolan itself; --debug shows where
  2    a wrong command, argument, setting or prompt
  3    a library is missing; the message names the extra to install
  4    a bundle or checkpoint is missing, damaged, or of a kind that is not supported
  5    a bundle does not compute here what it should
  6    not enough memory, cache or disk
  7    the engine failed
  {INTERRUPTED}  interrupted
  {CLOSED_PIPE}  whoever read the output went away
"""


def main(arguments: Sequence[str] | None = None, registry: Registry | None = None) -> int:
    """Run ``ortolan`` with the given arguments (None: those of the process) and return its exit code."""
    _open_standard_streams()
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    try:
        code = _run(given, registry or Registry.installed())
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _give_up_output()
        return CLOSED_PIPE
    except Exception as error:
        return _report(error, debug)


def _open_standard_streams() -> None:
    """Open what the caller closed of standard input, output and error, as if it were /dev/null.

    Left closed, their numbers would go to the next sockets and files, which prints would then write into.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            handle = os.open(os.devnull, os.O_RDWR)
            os.dup2(handle, number)
            if handle > 2:
                os.close(handle)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def _give_up_output() -> None:
    """Drop what is left to be written: Python flushes standard output once more at its end and would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(given: list[str], registry: Registry) -> int:
    parser = _parser()
    options = parser.parse_args(given)
    if options.version:
        print(f"{DISTRIBUTION} {_version()}")
        return 0
    if options.help or options.command is None:
        parser.epilog = f"{_command_list(registry)}\n{_EPILOG}"
        parser.print_help(sys.stdout if options.help else sys.stderr)
        return 0 if options.help else 2
    command = registry.load(options.command)
    sub_parser = _CommandParser(
        prog=f"{DISTRIBUTION} {command.name}",
        description=command.description,
        formatter_class=_Paragraphs,
        allow_abbrev=False,
    )
    command.configure(sub_parser)
    sub_parser.add_argument("--debug", action="store_true", help="show where an error comes from")
    # `main` has read it; parsers below this one, of benchmarks, do not know it.
    return command.run(sub_parser.parse_args([given for given in options.arguments if given != "--debug"]))


def _parser() -> _CommandParser:
    parser = _CommandParser(
        prog=DISTRIBUTION,
        usage=f"{DISTRIBUTION} [--help] [--version] COMMAND ...",
        description="Export language models to sealed bundles and serve them privately, without torch.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
        allow_abbrev=False,
    )
    parser.add_argument("-h", "--help", action="store_true", help="show this help; after a command, the command's")
    parser.add_argument("--version", action="store_true", help="show the version")
    parser.add_argument("--debug", action="store_true", help="show where an error comes from")
    parser.add_argument("command", nargs="?", metavar="COMMAND", help=argparse.SUPPRESS)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


class _CommandParser(argparse.ArgumentParser):
    """Wrong arguments become errors like all others: argparse says them below dozens of lines of usage."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Raises ConfigError for arguments that are not known, of which argparse has the outermost parser tell."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Raise ConfigError."""
        what = f"{message[0].upper()}{message[1:]}"
        hint = f"`{self.prog} --help` lists what it takes."
        unknown = re.fullmatch(r"unrecognized arguments: (--?[^ =]+).*", message, re.DOTALL)
        if unknown:
            what = f"There is no option {unknown[1]}"
            guess = nearest(unknown[1], set(re.findall(r"--[a-z][a-z-]*", self.format_help())))
            hint = hint if guess is None else f"Did you mean {guess}? {hint}"
        raise errors.ConfigError(what if what.endswith(".") else f"{what}.", remedy=hint)


class _Paragraphs(argparse.HelpFormatter):
    """Wraps each paragraph of a description by itself, and leaves indented ones, which are examples, alone."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = text.strip("\n").split("\n\n")
        return "\n\n".join(
            paragraph
            if paragraph.startswith(" ")
            else super(_Paragraphs, self)._fill_text(paragraph, width, indent)
            for paragraph in paragraphs
        )


def _command_list(registry: Registry) -> str:
    """One line a command; one that cannot load here says what it needs."""
    lines = ["commands:"]
    width = max(map(len, registry.names), default=0)
    for name in registry.names:
        try:
            text = registry.load(name).help
        except errors.MissingExtra as error:
            text = f"not available: {error.why} {error.remedy}"
        lines.append(f"  {name:<{width}}  {text}")
    if not registry.names:
        lines.append(f"  none: {DISTRIBUTION} is not installed here, only its source is")
    lines.append(f"\n`{DISTRIBUTION} COMMAND --help` explains a command.\n")
    return "\n".join(lines)


def _report(error: Exception, debug: bool) -> int:
    """Say what happened, why, and what to do, and return the exit code."""
    if isinstance(error, ModuleNotFoundError):
        error = missing_extra("A library is missing.", error)
    if isinstance(error, OSError) and error.errno in _FULL:
        _give_up_output()
        why = f"{error.strerror}."
        error = errors.OutOfDisk("Something could not be written.", why=why, remedy="Free some space.")
    if debug:
        traceback.print_exception(error)
    if isinstance(error, errors.OrtolanError):
        parts = [error.what, error.why, error.remedy]
        print(f"{DISTRIBUTION}: " + "\n  ".join(part for part in parts if part), file=sys.stderr)
        return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), INTERNAL_ERROR)
    print(
        f"{DISTRIBUTION}: An error in Ortolan itself: {type(error).__name__}: {error}\n"
        "  Run it again with --debug and report what it shows.",
        file=sys.stderr,
    )
    return INTERNAL_ERROR


def _version() -> str:
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    sys.exit(main())
