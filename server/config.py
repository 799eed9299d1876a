"""ServerConfig: parsed once from flags, `ORTOLAN_*` variables and a TOML file; the only reader of the environment.

A flag beats a variable, a variable beats the file, the file beats the default.
"""

from __future__ import annotations

import argparse
import ipaddress
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
from rtcore.config import EngineConfig
from server.nearest import nearest

PREFIX = "ORTOLAN_"
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]?i?)b?", re.IGNORECASE)

Positive = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0, le=1e6)]
Bytes = Annotated[int, Meta(ge=1, extra={"size": True})]


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How `ortolan serve` runs. Each field is a flag, a variable and a key of the file, described by its Meta."""

    bundle: Annotated[str, Meta(description="the bundle's directory")]
    host: Annotated[str, Meta(description="address to listen on")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="port to listen on; 0 takes a free one")] = 8000
    insecure: Annotated[bool, Meta(description="allow a host that other machines can reach")] = False
    model_name: Annotated[str | None, Meta(description="name that clients call the model by")] = None
    precision: Annotated[str | None, Meta(description="precision to run, by default the bundle's")] = None
    threads: Annotated[Positive | None, Meta(description="threads of the engine, by default one a core")] = None
    cache_bytes: Annotated[Bytes | None, Meta(description="memory for the KV cache, such as 2GiB")] = None
    block_size: Annotated[Positive, Meta(description="tokens in a cache block")] = 16
    max_step_tokens: Annotated[Positive, Meta(description="tokens in one step at most")] = 512
    max_prefill_chunk: Annotated[Positive | None, Meta(description="tokens of a prompt in a step at most")] = None
    max_sequences: Annotated[Positive, Meta(description="sequences in one step at most")] = 64
    max_queue: Annotated[Positive, Meta(description="waiting requests at most; more get status 503")] = 1024
    max_queue_tokens: Annotated[Positive | None, Meta(description="tokens of waiting requests at most")] = None
    max_wait: Annotated[Seconds, Meta(description="estimated wait from which low priorities get status 503")] = 30.0
    max_batch_delay_ms: Annotated[
        float, Meta(ge=0, le=1e6, description="how long an idle engine waits for more requests to fill a step")
    ] = 0.0
    target_step_ms: Annotated[
        float, Meta(gt=0, le=1e6, description="time of a step that decodes; prompts are cut into chunks to keep it")
    ] = 100.0
    long_tokens: Annotated[Positive, Meta(description="tokens from which a request counts as a long one")] = 4096
    long_share: Annotated[
        float, Meta(gt=0, lt=1, description="of time, places and cache, for long requests when all want more")
    ] = 0.25
    ageing: Annotated[Seconds, Meta(description="seconds of waiting that are worth one priority")] = 10.0
    prefix_cache: Annotated[bool, Meta(description="keep cache blocks for requests that begin alike")] = True
    cache_ttl: Annotated[Seconds, Meta(description="seconds that an unused cache block stays")] = 3600.0
    cache_tenant_share: Annotated[
        float, Meta(gt=0, le=1, description="of all blocks, for the unused ones of one cache salt")
    ] = 1.0
    swap_bytes: Annotated[
        int, Meta(ge=0, extra={"size": True}, description="host memory for the cache of preempted requests")
    ] = 256 * 2**20
    check: Annotated[
        Literal["full", "sizes"], Meta(description="full hashes the bundle before the start, sizes compares sizes")
    ] = "full"
    kernels: Annotated[
        Literal["auto", "avx512-vnni", "avx512", "avx2-vnni", "avx2", "portable"],
        Meta(description="code path of the CPU kernels"),
    ] = "auto"
    activations: Annotated[
        Literal["int8", "float32"], Meta(description="input of products with quantised weights; float32 is exact, slow")
    ] = "int8"
    max_body_bytes: Annotated[Bytes, Meta(description="size of a request's body at most")] = 8 * 2**20
    body_timeout: Annotated[Seconds, Meta(description="seconds in which a request's body must arrive")] = 30.0
    write_timeout: Annotated[Seconds, Meta(description="seconds until a reader that stalls is cut off")] = 60.0
    drain_timeout: Annotated[Seconds, Meta(description="seconds for what runs to finish on SIGTERM")] = 30.0
    hang_timeout: Annotated[Seconds, Meta(description="silence after which the engine counts as stuck")] = 300.0
    load_timeout: Annotated[Seconds, Meta(description="seconds in which the engine must load")] = 1800.0
    json_logs: Annotated[bool, Meta(description="log JSON lines")] = False
    log_level: Annotated[Literal["debug", "info", "warning", "error"], Meta(description="least level")] = "info"
    log_prompts: Annotated[bool, Meta(description="log prompts too, which are private otherwise")] = False

    def __post_init__(self) -> None:
        if not self.bundle:
            raise ConfigError("No bundle is given.", remedy="Name its directory.", param="bundle")
        if not (self.insecure or is_loopback(self.host)):
            raise ConfigError(
                f"{self.host} can be reached from other machines.",
                why="This server has no keys yet, so whoever reaches it may use it.",
                remedy="Listen on 127.0.0.1 behind a proxy that checks who comes, or say --insecure.",
                param="host",
            )

    def engine(self) -> EngineConfig:
        """The engine's share. Raises ConfigError where values do not go together."""
        names = [field for field in EngineConfig.__struct_fields__ if field in self.__struct_fields__]
        return EngineConfig(**{name: getattr(self, name) for name in names})


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add `--config` and a flag for each field; flags that are not given stay out of the namespace."""
    parser.add_argument("--config", metavar="FILE", default=None, help="TOML file with any of these settings")
    for field in msgspec.structs.fields(ServerConfig):
        description, choices, is_bool = _describe(field.type)
        if field.name == "bundle":
            parser.add_argument("bundle", nargs="?", default=argparse.SUPPRESS, help=description)
            continue
        default = "" if field.default is None else f" (default: {_shown(field.default)})"
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
        value = _bytes_of(value, place)
    try:
        return msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{place} is {value!r}.", why=f"{error}.", param=key) from error


def _is_unicode(text: str) -> bool:
    """False for what came from bytes of a command line or environment that are not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _bytes_of(text: str, place: str) -> int:
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
