"""Finding and registering the shared library that holds the operators' CPU kernels."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Protocol

import ops
from ops.errors import ConfigError, MissingLibrary

FILE_NAME = "libortolan_ops.so"

# The entry of a session's configuration that names the path of its kernels.
KERNELS_KEY = "ortolan.kernels"

# The entry that names what products with quantised weights round activations to.
ACTIVATIONS_KEY = "ortolan.activations"


# The entries that name a GPU, as `ops.cuda` counts those that are open, and the type of activations on it.
CUDA_KEY = "ortolan.cuda"
CUDA_TYPE_KEY = "ortolan.cuda.type"


class SessionOptions(Protocol):
    """What `register` needs of onnxruntime.SessionOptions."""

    def add_session_config_entry(self, key: str, value: str) -> None: ...

    def register_custom_ops_library(self, path: str) -> None: ...


def library_path() -> Path:
    """The operators' shared library.

    It lies in one of the folders of the package `ops`: an editable install puts it in site-packages, away from the
    sources. Raises MissingLibrary.
    """
    for folder in ops.__path__:
        path = Path(folder) / FILE_NAME
        if path.is_file():
            return path
    raise MissingLibrary(
        f"The operators' library {FILE_NAME} is not installed.",
        why=f"It is in none of {', '.join(ops.__path__)}.",
        remedy="Install the wheel of ortolan, or in a checkout run: pip install --no-deps -e .",
    )


@cache
def library() -> ctypes.CDLL:
    """The loaded library. Raises MissingLibrary."""
    path = library_path()
    try:
        loaded = ctypes.CDLL(str(path))
        for function in (loaded.ortolan_version, loaded.ortolan_available_kernels):
            function.restype = ctypes.c_char_p
            function.argtypes = []
    except (OSError, AttributeError) as error:
        raise MissingLibrary(
            f"The operators' library {path} cannot be loaded.",
            why=str(error),
            remedy="Install the wheel of ortolan that was built for this machine's architecture and C library.",
        ) from error
    return loaded


def library_version() -> str:
    """The version that the library was built as; equals the distribution's."""
    text: bytes = library().ortolan_version()
    return text.decode()


def available_kernels() -> tuple[str, ...]:
    """The instruction-set paths that this machine runs, fastest first, such as ("avx2", "portable")."""
    text: bytes = library().ortolan_available_kernels()
    return tuple(text.decode().split(","))


def register_cuda(session_options: SessionOptions, device: int, activations: str) -> None:
    """Make a session know the domain's operators for a GPU; call once, before the session is created.

    device: the number of an open `ops.cuda.CudaDevice`. activations: "float16" or "bfloat16", as in the graph.
    """
    session_options.add_session_config_entry(CUDA_KEY, str(device))
    session_options.add_session_config_entry(CUDA_TYPE_KEY, activations)
    session_options.register_custom_ops_library(str(library_path()))


def register(session_options: SessionOptions, kernels: str = "auto", activations: str = "int8") -> None:
    """Make a session know the domain `ai.ortolan`; call once on its options, before the session is created.

    kernels: "auto" for this machine's fastest path, or one of `available_kernels()`, for this session only.
    activations: "int8", to which QuantMatMul rounds, or "float32" for products without that rounding: slow, for
    verification. Raises MissingLibrary, or ConfigError where this machine does not run the path.
    """
    available = available_kernels()
    if kernels != "auto" and kernels not in available:
        raise ConfigError(
            f"This machine does not run the kernels {kernels!r}.",
            why=f"It runs {', '.join(available)}.",
            remedy="Choose one of these, or auto.",
            param="kernels",
        )
    session_options.add_session_config_entry(KERNELS_KEY, kernels)
    session_options.add_session_config_entry(ACTIVATIONS_KEY, activations)
    session_options.register_custom_ops_library(str(library_path()))
