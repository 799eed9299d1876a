"""Where a ServerConfig comes from: flags, `ORTOLAN_*` variables, a TOML file; the only reader of the environment.

A flag beats a variable, a variable beats the file, the file beats the default.
"""

from __future__ import annotations

import argparse
import os
import re
import tomllib
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from ops.errors import ConfigError
from server.config import ServerConfig
from server.nearest import nearest

PREFIX = "ORTOLAN_"
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]?i?)b?", re.IGNORECASE)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add `--config` and a flag for each field; flags that are not given stay out of the namespace."""
    parser.add_argument("--config", metavar="FILE", default=None, help="TOML file with any of these settings")
    for field in msgspec.structs.fields(ServerConfig):
        description, choices, is_bool = _describe(field.type)
        if field.name == "bundle":
            parser.add_argument("bundle", nargs="?", default=argparse.SUPPRESS, help=description)
            continue
        default = "" if field.default in (None, msgspec.NODEFAULT) else f" (default: {_shown(field.default)})"
        options: dict[str, Any] = {"default": argparse.SUPPRESS, "help": (description + default).replace("%", "%%")}
        if is_bool:
            options["action"] = argparse.BooleanOptionalAction
        elif choices:
            options["metavar"] = "|".join(choices)
        else:
            options["metavar"] = field.name.rsplit("_", 1)[-1].upper()
        parser.add_argument(flag_of(field.name), **options)


def load_config(flags: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> ServerConfig:
    """Merge the sources and check them; raises ConfigError naming the flag, the variable or the key.

    environment: by default that of this process.
    """
    environment = os.environ if environment is None else environment
    known = list(ServerConfig.__struct_fields__)
    variables = {name: value for name, value in environment.items() if name.startswith(PREFIX)}
    file = flags.get("config") or variables.pop(PREFIX + "CONFIG", None)
    variables.pop(PREFIX + "CONFIG", None)
    values: dict[str, Any] = {}
    if file:
        values |= _read_file(Path(file), known)
    for name, text in variables.items():
        key = name.removeprefix(PREFIX).lower()
        if key not in known or name != name.upper():
            raise _unknown("environment variable", name, [PREFIX + field.upper() for field in [*known, "config"]])
        values[key] = _convert(key, text, name, strict=False)
    for key, value in flags.items():
        if key in known:
            values[key] = _convert(key, value, flag_of(key), strict=False)
    if "bundle" not in values:
        raise ConfigError("No bundle is given.", remedy="Say `ortolan serve DIRECTORY`.", param="bundle")
    return ServerConfig(**values)


def flag_of(name: str) -> str:
    """The flag of a field, or what the positional argument is called."""
    return "BUNDLE" if name == "bundle" else "--" + name.replace("_", "-")


def _read_file(path: Path, known: list[str]) -> dict[str, Any]:
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(
            f"The configuration file {path} cannot be read.", why=f"{error.strerror}.", param="config"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML.", why=f"{error}.", param="config") from error
    values = {}
    for key, value in content.items():
        if key not in known:
            raise _unknown(f"key in {path}", key, known)
        values[key] = _convert(key, value, f"{key} in {path}", strict=True)
    return values


def _convert(key: str, value: Any, place: str, *, strict: bool) -> Any:
    """A value as its field's type; strings of flags and variables are read, TOML's types must fit."""
    kind = get_type_hints(ServerConfig, include_extras=True)[key]
    if isinstance(value, str) and not _is_unicode(value):
        raise ConfigError(f"{place} is {value!r}.", why="It is not UTF-8.", param=key)
    if isinstance(value, str) and _is_size(kind):
        value = bytes_of(value, place)
    if isinstance(value, str) and _is_table(kind):
        value = _table_of(value, place)
    try:
        return msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as error:
        choices = _describe(kind)[1]
        remedy = f"Give one of {', '.join(choices)}." if choices else ""
        raise ConfigError(
            f"{place} is {value!r}.", why="" if choices else f"{error}.", remedy=remedy, param=key
        ) from error


def _is_unicode(text: str) -> bool:
    """False for what came from bytes of a command line or environment that are not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _table_of(text: str, place: str) -> dict[str, str]:
    """`a=1,b=2` as a table; the last = of an entry divides it."""
    entries = [entry.rpartition("=") for entry in text.split(",") if entry.strip()]
    if not all(name.strip() and divider for name, divider, _ in entries):
        raise ConfigError(f"{place} is {text!r}.", remedy="Give names and numbers, such as alice=2,bob=0.5.")
    return {name.strip(): number.strip() for name, _, number in entries}


def bytes_of(text: str, place: str) -> int:
    """The number of bytes that a text such as 512MiB says. Raises ConfigError naming the place."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ConfigError(f"{place} is {text!r}.", remedy="Give bytes, or a size such as 512MiB or 2GB.")
    return int(float(found[1]) * _UNITS[found[2].lower()])


def _unknown(kind: str, name: str, known: list[str]) -> ConfigError:
    close = nearest(name, known)
    remedy = f"Did you mean {close}?" if close else f"Known are {', '.join(known)}."
    return ConfigError(f"There is no {kind} called {name}.", remedy=remedy, param=name)


def _parts(kind: Any) -> list[Any]:
    """The plain types and Metas that an annotation is made of."""
    if get_origin(kind) is Annotated:
        inner, *metas = get_args(kind)
        return [*_parts(inner), *metas]
    if get_origin(kind) in (Union, types.UnionType):
        return [part for entry in get_args(kind) for part in _parts(entry)]
    return [kind]


def _is_size(kind: Any) -> bool:
    return any(isinstance(part, Meta) and (part.extra or {}).get("size") for part in _parts(kind))


def _is_table(kind: Any) -> bool:
    return any(get_origin(part) is dict for part in _parts(kind))


def _describe(kind: Any) -> tuple[str, tuple[str, ...], bool]:
    """Description, choices, and whether it is a switch."""
    description = ""
    choices: tuple[str, ...] = ()
    switch = False
    for part in _parts(kind):
        if isinstance(part, Meta) and part.description:
            description = part.description
        elif get_origin(part) is Literal:
            choices = get_args(part)
        elif part is bool:
            switch = True
    return description, choices, switch


def _shown(default: Any) -> str:
    if isinstance(default, bool):
        return "yes" if default else "no"
    return f"{default:g}" if isinstance(default, float) else str(default)
