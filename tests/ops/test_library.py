"""Finding, loading and registering the operators' library."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import onnxruntime
import pytest

import ops
from ops import library
from ops.errors import ConfigError, MissingLibrary

PATHS = {"avx512-amx", "avx512-vnni", "avx512", "avx2-vnni", "avx2", "portable"}


def test_the_library_is_found_and_is_of_this_version() -> None:
    path = library.library_path()
    assert path.name == library.FILE_NAME and path.parent in [Path(folder) for folder in ops.__path__]
    assert library.library_version() == version("ortolan")


def test_paths_end_with_the_portable_one() -> None:
    paths = library.available_kernels()
    assert paths[-1] == "portable" and len(set(paths)) == len(paths) and set(paths) <= PATHS


def test_a_missing_library_names_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ops, "__path__", [str(tmp_path)])
    with pytest.raises(MissingLibrary, match="pip install") as caught:
        library.library_path()
    assert str(tmp_path) in caught.value.why


def test_a_broken_library_names_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / library.FILE_NAME).write_bytes(b"\x7fELF not quite")
    monkeypatch.setattr(ops, "__path__", [str(tmp_path)])
    library.library.cache_clear()
    try:
        with pytest.raises(MissingLibrary, match="cannot be loaded"):
            library.available_kernels()
    finally:
        library.library.cache_clear()


def test_a_path_that_the_machine_lacks_is_refused() -> None:
    with pytest.raises(ConfigError, match="portable") as caught:
        library.register(onnxruntime.SessionOptions(), "sse9")
    assert caught.value.param == "kernels"


def test_the_library_itself_refuses_such_a_path() -> None:
    """Also where a session's entry was set without this package."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(library.KERNELS_KEY, "sse9")
    with pytest.raises(Exception, match=r"this machine has no path 'sse9'\. It runs: .*portable"):
        options.register_custom_ops_library(str(library.library_path()))


@pytest.mark.parametrize("kernels", ["auto", *library.available_kernels()])
def test_every_path_registers(kernels: str) -> None:
    library.register(onnxruntime.SessionOptions(), kernels)
