"""What a sub-command of ``ortolan`` is, found through the entry-point group ``ortolan.commands``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

ENTRY_POINT_GROUP = "ortolan.commands"


@dataclass(frozen=True)
class Command:
    """One sub-command; its module must import quickly and load heavy libraries inside `run`.

    help: the one line shown by ``ortolan --help``. description: what ``ortolan NAME --help`` opens with.
    configure: adds the command's arguments. run: does the work and returns the exit code; errors are
    raised as OrtolanError and printed by the command line.
    """

    name: str
    help: str
    description: str
    configure: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
