"""Who may import whom: read off the sources, and tried in processes that lack the forbidden modules."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import openai
import psutil
import pytest

from tests.e2e.absent import BUILD_ONLY, FORBIDDEN, environment_without, processes
from tests.e2e.server_process import ServerProcess, ortolan

LAW = {
    "ops": {"ops"},
    "rtcore": {"ops", "rtcore"},
    "server": {"ops", "rtcore", "server"},
    "models": {"ops", "rtcore", "models"},
    "export": {"ops", "rtcore", "models", "export"},
}
SERVING = ("ops", "rtcore", "server")
#: GPU kernels: the exporter compiles them, and nothing that serves knows them.
KERNELS = Path("ops", "triton")


def package_folder(name: str) -> Path:
    spec = find_spec(name)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def imports(path: Path) -> Iterator[str]:
    """Top-level names of all modules that a file imports, also inside functions and for type checking."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            yield (node.module or "").partition(".")[0]


def violations(package: str, allowed: set[str], forbidden: set[str]) -> list[str]:
    folder = package_folder(package)
    return [
        f"{package}/{path.relative_to(folder)} imports {name}"
        for path in sorted(folder.rglob("*.py"))
        if not path.is_relative_to(folder.parent / KERNELS)
        for name in imports(path)
        if (name in LAW and name not in allowed) or name in forbidden
    ]


@pytest.mark.parametrize("package", SERVING)
def test_nothing_that_serves_names_the_kernels_sources(package: str) -> None:
    folder = package_folder(package)
    files = [path for path in folder.rglob("*.py") if not path.is_relative_to(folder.parent / KERNELS)]
    assert [path for path in files if "ops.triton" in path.read_text()] == []


@pytest.mark.parametrize("package", LAW)
def test_sources_keep_the_law(package: str) -> None:
    assert violations(package, LAW[package], set(BUILD_ONLY) if package in SERVING else set()) == []


def test_a_violation_would_be_found() -> None:
    assert violations("server", {"server"}, {"aiohttp"}) != []


def environment_reads(package: str) -> list[str]:
    folder = package_folder(package)
    return [
        f"{package}/{path.relative_to(folder)}:{node.lineno}"
        for path in sorted(folder.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "environb", "getenv")
    ]


def test_the_environment_is_read_in_one_module() -> None:
    found = [place for package in LAW for place in environment_reads(package)]
    assert [place for place in found if not place.startswith("server/config_sources.py:")] == []


def run(folder: Path, *command: str, absent: tuple[str, ...] = FORBIDDEN) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environment_without(folder / "site", absent)}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize("name", ["export", "models", "torch"])
def test_absent_modules_are_absent(tmp_path: Path, name: str) -> None:
    done = run(tmp_path, sys.executable, "-P", "-c", f"import rtcore, {name}")
    assert done.returncode != 0 and f"No module named '{name}'" in done.stderr
    assert len(processes(tmp_path / "site")) == 1


def test_engine_runs_without_what_only_export_needs(tiny_bundle: Path, tmp_path: Path) -> None:
    code = (
        "from rtcore import LLM, SamplingParams\n"
        f"with LLM({str(tiny_bundle)!r}, precision='fp32') as llm:\n"
        "    print(len(llm.generate(['The quick'], SamplingParams(temperature=0, max_tokens=5, ignore_eos=True))"
        "[0].outputs[0].token_ids))\n"
        f"import sys; print(sorted({set(FORBIDDEN)!r} & set(sys.modules)))\n"
    )
    done = run(tmp_path, sys.executable, "-P", "-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["5", "[]"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("generate", "{bundle}", "The quick", "--max-tokens", "3"),
        ("inspect", "{bundle}"),
        ("verify", "{bundle}"),
    ],
)
def test_commands_run_without_what_only_export_needs(
    tiny_bundle: Path, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    done = run(tmp_path, *ortolan(), *(part.format(bundle=tiny_bundle) for part in arguments))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_export_without_its_extra_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    done = run(
        tmp_path,
        *ortolan(),
        "export",
        str(tmp_path / "model"),
        "--output",
        str(tmp_path / "out"),
        absent=BUILD_ONLY,
    )
    assert done.returncode != 0
    assert "ortolan[export]" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_server_runs_without_what_only_export_needs(tiny_bundle: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    env = environment_without(site)
    with ServerProcess(tiny_bundle, tmp_path / "log", env=env) as server:
        family = {server.process.pid, *(child.pid for child in psutil.Process(server.process.pid).children(True))}
        assert len(family) >= 2 and family <= processes(site)
        client = openai.OpenAI(base_url=f"{server.base}/v1", api_key="none", max_retries=0)
        model = client.models.list().data[0].id
        answer = client.completions.create(model=model, prompt="The quick", max_tokens=4, temperature=0)
        assert answer.usage is not None and answer.usage.completion_tokens >= 1
