from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from ops import errors
from rtcore.command import Command
from server.cli import EXIT_CODES, main
from server.commands.registry import Registry

ROOT = Path(__file__).parents[2]


def every_error(kind: type[errors.OrtolanError] = errors.OrtolanError) -> list[type[errors.OrtolanError]]:
    return [kind, *(below for direct in kind.__subclasses__() for below in every_error(direct))]


class Entry:
    """An entry point that loads a given command, or fails to."""

    def __init__(self, name: str, run: object = None) -> None:
        self.name = name
        self._run = run

    def load(self) -> Command:
        if isinstance(self._run, ImportError):
            raise self._run

        def run(arguments: argparse.Namespace) -> int:
            if isinstance(self._run, BaseException):
                raise self._run
            return int(str(self._run or 0))

        def configure(parser: argparse.ArgumentParser) -> None:
            parser.add_argument("--size", type=int, help="how large")

        return Command(self.name, f"help of {self.name}", f"description of {self.name}", configure, run)


def registry(**runs: object) -> Registry:
    return Registry([Entry(name, run) for name, run in runs.items()])  # type: ignore[misc]


def missing(module: str) -> ModuleNotFoundError:
    return ModuleNotFoundError(f"No module named {module!r}", name=module)


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"], registry(serve=0, export=missing("torch.nn"))) == 0
    shown = capsys.readouterr().out
    assert "serve   help of serve" in shown
    assert "export  not available: The library 'torch' is not installed." in shown
    assert "ortolan[export]" in shown
    assert "exit codes" in shown


def test_without_a_command_help_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([], registry(serve=0)) == 2
    assert "help of serve" in capsys.readouterr().err


def test_help_of_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["serve", "--help"], registry(serve=0))
    assert left.value.code == 0
    shown = capsys.readouterr().out
    assert "usage: ortolan serve" in shown
    assert "description of serve" in shown
    assert "how large" in shown


def test_examples_in_a_description_keep_their_lines(capsys: pytest.CaptureFixture[str]) -> None:
    words = "word " * 40
    command = Command(
        "serve", "", f"{words}\n\n  ortolan one\n  ortolan two\n", lambda parser: None, lambda arguments: 0
    )

    class Described(Entry):
        def load(self) -> Command:
            return command

    with pytest.raises(SystemExit):
        main(["serve", "--help"], Registry([Described("serve")]))  # type: ignore[list-item]
    shown = capsys.readouterr().out
    assert "\n\n  ortolan one\n  ortolan two\n\n" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"], registry()) == 0
    assert capsys.readouterr().out == f"ortolan {metadata.version('ortolan')}\n"


def test_the_exit_code_is_the_commands() -> None:
    assert main(["serve", "--size", "3"], registry(serve=9)) == 9


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serve", "--size", "x"], "Argument --size: invalid int value: 'x'."),
        (["serve", "--siz", "3"], "There is no option --siz.\n  Did you mean --size?"),
        (["serve", "--siz=3"], "There is no option --siz.\n  Did you mean --size?"),
        (["serve", "more"], "Unrecognized arguments: more.\n  `ortolan serve --help`"),
        (["--foo"], "There is no option --foo.\n  `ortolan --help`"),
    ],
)
def test_wrong_arguments_are_told_in_a_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments, registry(serve=0)) == 2
    shown = capsys.readouterr().err
    assert said in shown and shown.count("\n") == 2


def nested() -> Registry:
    """A command with a command of its own, which gives the size that it was given as its code."""

    def configure(parser: argparse.ArgumentParser) -> None:
        inner = parser.add_subparsers(dest="inner", required=True).add_parser("http")
        inner.add_argument("--size", type=int)

    class Nested(Entry):
        def load(self) -> Command:
            return Command("bench", "", "", configure, lambda arguments: int(arguments.size))

    return Registry([Nested("bench")])  # type: ignore[list-item]


def test_a_command_of_a_command_tells_of_its_own_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "http", "--sizd", "3"], nested()) == 2
    said = "There is no option --sizd.\n  Did you mean --size? `ortolan bench http --help`"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("place", range(4))
def test_debug_may_stand_anywhere(place: int) -> None:
    arguments = ["bench", "http", "--size=3"]
    assert main([*arguments[:place], "--debug", *arguments[place:]], nested()) == 3


@pytest.mark.parametrize(("name", "said"), [("serv", "Did you mean 'serve'?"), ("xyz", "ortolan --help")])
def test_an_unknown_command_suggests_the_nearest(name: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name], registry(serve=0, bench=0)) == 2
    shown = capsys.readouterr().err
    assert f"There is no command {name!r}." in shown
    assert said in shown


def test_a_missing_library_names_the_extra(capsys: pytest.CaptureFixture[str]) -> None:
    cases = {
        "onnx_ir": "pip install 'ortolan[export]'",
        "onnxruntime": "pip install 'ortolan[cpu]'",
        "openai": "pip install 'ortolan[test]'",
        "aiohttp": "Install ortolan again.",
    }
    for module, remedy in cases.items():
        assert main(["export"], registry(export=missing(module))) == 3
        assert remedy in capsys.readouterr().err


def test_a_library_that_lacks_while_running_names_the_extra_too(capsys: pytest.CaptureFixture[str]) -> None:
    class Late(Entry):
        def load(self) -> Command:
            def run(arguments: argparse.Namespace) -> int:
                raise missing("onnxruntime.capi")

            return Command("serve", "", "", lambda parser: None, run)

    assert main(["serve"], Registry([Late("serve")])) == 3  # type: ignore[list-item]
    assert "ortolan[cpu]" in capsys.readouterr().err


@pytest.mark.parametrize("kind", every_error()[1:])
def test_every_typed_error_has_a_code_and_is_said_in_words(
    kind: type[errors.OrtolanError], capsys: pytest.CaptureFixture[str]
) -> None:
    error = kind("What happened.", why="Why it did.", remedy="What to do.")
    code = main(["serve"], registry(serve=error))
    assert code == next(number for listed, number in EXIT_CODES if issubclass(kind, listed))
    assert capsys.readouterr().err == "ortolan: What happened.\n  Why it did.\n  What to do.\n"


@pytest.mark.parametrize("arguments", [["--debug", "serve"], ["serve", "--debug"]])
def test_debug_shows_the_traceback(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments, registry(serve=errors.InvalidRequest("No."))) == 2
    assert "Traceback" in capsys.readouterr().err


def test_an_error_of_our_own_is_said_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve"], registry(serve=ValueError("odd"))) == 1
    shown = capsys.readouterr().err
    assert "ValueError: odd" in shown
    assert "--debug" in shown
    assert "Traceback" not in shown


def test_an_interrupt_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve"], registry(serve=KeyboardInterrupt())) == 130
    assert capsys.readouterr() == ("", "")


SCRIPT = """
import sys
from rtcore.command import Command
from server.cli import main
from server.commands.registry import Registry

class Entry:
    name = "talk"
    def load(self):
        return Command("talk", "", "", lambda parser: None, run)

def run(arguments):
    import time
    print("started", flush=True)
    {body}

sys.exit(main(["talk"], Registry([Entry()])))
"""


def start(body: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(body=body)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def test_a_closed_pipe_is_quiet() -> None:
    process = start("[print('x' * 1000) for _ in range(100000)]")
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline() == "started\n"
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(30) == 141
    process.stderr.close()


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_no_error(closed: str) -> None:
    body = "import os; opened = os.open('/', os.O_RDONLY); assert opened > 2; return 0"
    command = [sys.executable, "-c", SCRIPT.format(body=body)]
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" "$@" {closed}', *command], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_output_to_a_full_disk_is_said_in_words() -> None:
    command = [sys.executable, "-c", SCRIPT.format(body="return 0")]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False)
    assert done.returncode == 6
    assert "No space left" in done.stderr
    assert len(done.stderr.splitlines()) < 5


@pytest.mark.skipif(os.name != "posix", reason="signals are those of POSIX")
def test_ctrl_c_is_quiet() -> None:
    process = start("time.sleep(60)")
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == 130


def test_the_installed_command_finds_its_sub_commands() -> None:
    names = Registry.installed().names
    assert {"export", "serve", "generate", "chat", "inspect", "verify", "bench"} <= set(names)
    for name in names:
        command = Registry.installed().load(name)
        assert command.name == name
        assert command.help
        assert command.description
