"""ServerConfig: three sources, their order, and what is refused."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from ops.errors import ConfigError
from rtcore.config import EngineConfig
from server.config import ServerConfig, is_loopback
from server.config_sources import add_flags, flag_of, load_config


def parsed(*arguments: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    return vars(parser.parse_args(list(arguments)))


def test_flags_beat_variables_beat_the_file_beat_defaults(tmp_path: Path) -> None:
    file = tmp_path / "ortolan.toml"
    file.write_text('bundle = "from-file"\nport = 1\nmax_queue = 1\nthreads = 1\n')
    config = load_config(
        parsed("--config", str(file), "--port", "3"), {"ORTOLAN_PORT": "2", "ORTOLAN_MAX_QUEUE": "2", "PORT": "9"}
    )
    assert (config.bundle, config.port, config.max_queue, config.threads) == ("from-file", 3, 2, 1)
    assert config.max_sequences == ServerConfig(bundle="x").max_sequences


def test_the_file_can_be_named_by_a_variable(tmp_path: Path) -> None:
    file = tmp_path / "ortolan.toml"
    file.write_text("port = 1\njson_logs = true\nbody_timeout = 3\n")
    config = load_config(parsed("b"), {"ORTOLAN_CONFIG": str(file)})
    assert (config.port, config.json_logs, config.body_timeout) == (1, True, 3.0)


def test_every_field_is_a_flag_a_variable_and_a_key(tmp_path: Path) -> None:
    other = {str: "avx2", bool: True, int: 77, float: 7.5}
    special = {"host": "localhost", "check": "sizes", "log_level": "debug", "precision": "int8", "bundle": "b"}
    special |= {"long_share": 0.5, "cache_tenant_share": 0.5, "tenant_header": "x-tenant", "draft_bundle": "small"}
    special |= {"target": "cuda", "activations": "float32"}
    defaults = ServerConfig(bundle="x")
    for field in set(ServerConfig.__struct_fields__) - {"tenant_weights"}:
        default = getattr(defaults, field)
        value = special.get(field, other.get(type(default), "name" if field == "model_name" else 77))
        if field == "max_step_tokens":
            value = 700
        text = str(value).lower() if isinstance(value, bool) else str(value)
        flags = [text] if field == "bundle" else ["b", flag_of(field), text]
        if isinstance(value, bool):
            flags = ["b", flag_of(field)]
        file = tmp_path / "c.toml"
        file.write_text(f"{field} = {text if not isinstance(value, str) else repr(value)}\n")
        others = {} if field == "bundle" else {"bundle": "b"}
        assert getattr(load_config(parsed(*flags), {}), field) == value
        assert getattr(load_config(others, {f"ORTOLAN_{field.upper()}": text}), field) == value
        assert getattr(load_config({**others, "config": str(file)}, {}), field) == value


def test_weights_are_a_list_or_a_table(tmp_path: Path) -> None:
    weights = {"alice": 2.0, "a=b": 0.5}
    file = tmp_path / "c.toml"
    file.write_text('[tenant_weights]\nalice = 2\n"a=b" = 0.5\n')
    assert load_config(parsed("b", "--tenant-weights", "alice=2, a=b=0.5"), {}).tenant_weights == weights
    assert load_config(parsed("b"), {"ORTOLAN_TENANT_WEIGHTS": "alice=2,a=b=0.5"}).tenant_weights == weights
    config = load_config(parsed("b", "--config", str(file)), {})
    assert config.tenant_weights == config.engine().tenant_weights == weights


@pytest.mark.parametrize(
    ("text", "size"),
    [("1024", 1024), ("2GiB", 2 << 30), ("1.5 gb", 1_500_000_000), ("64k", 64_000), ("1MiB", 1 << 20)],
)
def test_sizes_have_units(text: str, size: int) -> None:
    assert load_config(parsed("b", "--cache-bytes", text), {}).cache_bytes == size


@pytest.mark.parametrize(
    ("flags", "environment", "file", "named"),
    [
        (["b", "--port", "x"], {}, "", "--port"),
        (["b", "--port", "65536"], {}, "", "--port"),
        (["b", "--port", "-1"], {}, "", "--port"),
        (["b", "--threads", "0"], {}, "", "--threads"),
        (["b", "--cache-bytes", "2 parsecs"], {}, "", "--cache-bytes"),
        (["b", "--check", "none"], {}, "", "--check is 'none'. Give one of full, sizes."),
        (["b", "--drain-timeout", "0"], {}, "", "--drain-timeout"),
        (["b", "--drain-timeout", "nan"], {}, "", "--drain-timeout"),
        (["b", "--tenant-weights", "alice"], {}, "", "--tenant-weights"),
        (["b", "--tenant-weights", "=2"], {}, "", "--tenant-weights"),
        (["b", "--tenant-weights", "alice=0"], {}, "", "--tenant-weights"),
        (["b", "--tenant-weights", "alice=x"], {}, "", "--tenant-weights"),
        (["b", "--queue-timeout", "0"], {}, "", "--queue-timeout"),
        (["b"], {"ORTOLAN_PORT": "x"}, "", "ORTOLAN_PORT"),
        (["b"], {"ORTOLAN_PROT": "1"}, "", "ORTOLAN_PORT"),
        (["b"], {"ORTOLAN_port": "1"}, "", "ORTOLAN_PORT"),
        (["b"], {"ORTOLAN_JSON_LOGS": "perhaps"}, "", "ORTOLAN_JSON_LOGS"),
        (["b"], {}, "prot = 1", "port"),
        (["b"], {}, 'port = "1"', "port"),
        (["b"], {}, "port = 1.5", "port"),
        (["b"], {}, "port = ", "TOML"),
        (["b"], {}, "[server]\nport = 1", "server"),
        ([], {}, "", "bundle"),
        ([""], {}, "", "bundle"),
        (["b\udcff"], {}, "", "BUNDLE"),
        (["b", "--model-name", "\udcff"], {}, "", "--model-name"),
    ],
)
def test_what_is_wrong_is_named(
    tmp_path: Path, flags: list[str], environment: dict[str, str], file: str, named: str
) -> None:
    if file:
        path = tmp_path / "c.toml"
        path.write_text(file)
        flags = [*flags, "--config", str(path)]
    with pytest.raises(ConfigError) as raised:
        load_config(parsed(*flags), environment)
    assert named in str(raised.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    for path in (tmp_path / "none.toml", tmp_path, binary):
        with pytest.raises(ConfigError) as raised:
            load_config(parsed("b", "--config", str(path)), {})
        assert str(path) in str(raised.value)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "example.org", "", "127.0.0.1.example.org"])
def test_addresses_that_others_reach_need_insecure(host: str) -> None:
    with pytest.raises(ConfigError, match="insecure"):
        load_config(parsed("b", "--host", host), {})
    assert load_config(parsed("b", "--host", host, "--insecure"), {}).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_addresses_of_this_machine(host: str) -> None:
    assert is_loopback(host)
    assert load_config(parsed("b", "--host", host), {}).host == host


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("threads", "100000"),
        ("threads", "9" * 30),
        ("cache_bytes", "999999999999999GiB"),
        ("block_size", "9" * 20),
        ("max_queue", "9" * 20),
    ],
)
def test_numbers_that_no_machine_has_are_named(flag: str, value: str) -> None:
    config = load_config(parsed("b", "--" + flag.replace("_", "-"), value), {})
    with pytest.raises(ConfigError, match="at most") as raised:
        config.engine()
    assert raised.value.param == flag


def test_the_engine_gets_its_share() -> None:
    config = load_config(parsed("b", "--threads", "3", "--precision", "int8", "--check", "sizes"), {})
    assert config.engine() == EngineConfig(threads=3, precision="int8", check="sizes")
    with pytest.raises(ConfigError, match="max_step_tokens"):
        load_config(parsed("b", "--max-sequences", "1000"), {}).engine()
