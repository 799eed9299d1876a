"""The sub-commands that are installed, found through entry points; one that cannot load says what it lacks."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib import metadata

from ops.errors import InvalidRequest, MissingExtra
from rtcore.command import ENTRY_POINT_GROUP, Command
from server.nearest import nearest

DISTRIBUTION = "ortolan"

# A requirement of the distribution that only an extra asks for: `torch>=2.9; extra == "export"`.
_EXTRA_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*).*\bextra\s*==\s*['\"]([^'\"]+)['\"]")

# Extras that bring no command, or bring one that another extra brings as well.
_SECOND_CHOICE = ("test", "gpu")


class Registry:
    """Sub-commands by name; each loads when it is asked for."""

    def __init__(self, entry_points: Iterable[metadata.EntryPoint]) -> None:
        self._entries = {entry.name: entry for entry in entry_points}

    @classmethod
    def installed(cls) -> Registry:
        """The sub-commands of everything that is installed."""
        return cls(metadata.entry_points(group=ENTRY_POINT_GROUP))

    @property
    def names(self) -> list[str]:
        return sorted(self._entries)

    def load(self, name: str) -> Command:
        """The command of that name.

        Raises InvalidRequest where there is none, and MissingExtra where its module lacks a library.
        """
        if name not in self._entries:
            near = nearest(name, self._entries)
            raise InvalidRequest(
                f"There is no command {name!r}.",
                remedy=f"Did you mean {near!r}?" if near else "`ortolan --help` lists the commands.",
                param="command",
            )
        try:
            command: Command = self._entries[name].load()
        except ModuleNotFoundError as error:
            raise missing_extra(f"`ortolan {name}` cannot run.", error) from error
        return command


def missing_extra(what: str, error: ModuleNotFoundError) -> MissingExtra:
    """The error for a library that is not installed; the remedy names the extra that brings it."""
    module = (error.name or "").partition(".")[0]
    extra = _extra_of(module)
    install = f"Install it: pip install '{DISTRIBUTION}[{extra}]'" if extra else f"Install {DISTRIBUTION} again."
    return MissingExtra(what, why=f"The library {module!r} is not installed.", remedy=install, param=extra)


def _extra_of(module: str) -> str | None:
    """The extra whose requirements include the library, by the distribution's own metadata."""
    try:
        requirements = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return None
    extras = [
        match[2]
        for match in map(_EXTRA_REQUIREMENT.match, requirements)
        if match and re.sub(r"[-_.]+", "_", match[1]).lower() == module.lower()
    ]
    return min(extras, key=lambda extra: extra in _SECOND_CHOICE, default=None)
