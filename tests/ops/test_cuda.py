"""CudaDevice over a driver that only pretends, in processes of their own: the library finds drivers once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("fake_driver.c")
PRELUDE = """
import numpy as np
from ops.cuda import CudaDevice, Kernel
from ops.errors import EngineError, OutOfDeviceMemory, WrongTarget

def kernel(key="argmax_part", arguments="PPPII", constants={"PART": 64}, **changed):
    fields = dict(key=key, entry=key + "_entry", arguments=arguments, warps=4, shared=128, rows=1 << 30, columns=0,
                  constants=constants, image=b"cubin")
    return Kernel(**{**fields, **changed})

def whole():
    return kernel("argmax", "PPPPi", {"BLOCK": 8})
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with libcuda.so.1 and libcublas.so.13."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("driver")
    target = folder / "libcuda.so.1"
    subprocess.run([compiler, "-std=gnu11", "-shared", "-fPIC", "-o", str(target), str(SOURCE)], check=True)
    (folder / "libcublas.so.13").symlink_to(target)
    return folder


def run(driver: Path, body: str, **environment: str) -> list[str]:
    """Run a program over the pretended driver; its launches, one a line."""
    log = driver / "log"
    log.write_text("")
    given = {**os.environ, "LD_LIBRARY_PATH": str(driver), "FAKE_CUDA_LOG": str(log), **environment}
    command = [sys.executable, "-c", PRELUDE + body]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return log.read_text().splitlines()


def test_memory_goes_there_and_back(driver: Path) -> None:
    run(
        driver,
        """
device = CudaDevice()
assert (device.name, device.architecture, device.multiprocessors) == ("Fake GPU", 90, 4)
assert device.memory() == (1 << 30, 2 << 30)
address, sent = device.allocate(4000), np.arange(1000, dtype=np.int32)
device.to_device(address, sent)
device.copy(address + 400, address, 400)
found = device.pinned(4000)
device.to_host(found, address)
device.synchronize()
assert (found.view(np.int32)[100:200] == sent[:100]).all()
device.fill(address, 4000)
device.to_host(found, address)
assert not found.any()
start, end = device.record(), device.record()
assert device.elapsed(start, end) == 1.5
device.release_event(start); device.release_event(end)
del found
device.close()
device.close()
""",
    )


def test_kernels_are_launched_over_the_grid_that_their_tiles_ask_for(driver: Path) -> None:
    launches = run(
        driver,
        """
device = CudaDevice()
device.add_kernel(kernel(arguments="PPPIi")); device.add_kernel(whole())
logits = device.allocate(4 * 3 * 160)
device.argmax(logits, device.allocate(64), device.allocate(64), 3, 160)
""",
    )
    assert launches == ["argmax_part_entry 3 3 1 128 128", "argmax_entry 3 1 1 128 128"]


def test_a_kernel_that_waits_by_itself_may_start_early(driver: Path) -> None:
    launches = run(
        driver,
        """
device = CudaDevice()
device.add_kernel(kernel(arguments="PPPIi", constants={"PART": 64, "DEPENDENT": 1})); device.add_kernel(whole())
device.argmax(device.allocate(4 * 160), device.allocate(64), device.allocate(64), 1, 160)
""",
    )
    assert launches == ["argmax_part_entry 1 3 1 128 128 early", "argmax_entry 1 1 1 128 128"]


def test_arguments_that_do_not_fit_are_refused_with_the_kernels_name(driver: Path) -> None:
    launches = run(
        driver,
        """
device = CudaDevice()
device.add_kernel(kernel(arguments="PPPIi")); device.add_kernel(whole())
logits, ids = device.allocate(4096), device.allocate(64)
for columns, tops in ((100, ids), (160, ids + 8)):
    try:
        device.argmax(logits, ids, tops, 1, columns)
    except EngineError as error:
        assert "kernel argmax" in error.why and "multiples of 16" in error.why, error.why
    else:
        raise AssertionError(columns)
""",
    )
    assert all(line.startswith("argmax_part") for line in launches)


def test_a_kernel_that_the_bundle_lacks_is_named(driver: Path) -> None:
    run(
        driver,
        """
device = CudaDevice()
try:
    device.argmax(0, 0, 0, 1, 16)
except EngineError as error:
    assert "packs no kernel argmax_part" in error.why and "Export" in error.why
else:
    raise AssertionError
""",
    )


def test_binaries_that_do_not_load_and_too_much_shared_memory_are_errors(driver: Path) -> None:
    run(
        driver,
        """
device = CudaDevice()
for changed in ({"image": b"nonsense"}, {"shared": 1 << 20}):
    try:
        device.add_kernel(kernel(**changed))
    except EngineError as error:
        assert "argmax_part" in error.why
    else:
        raise AssertionError(changed)
device.add_kernel(kernel(shared=200_000))
""",
    )


def test_no_memory_left_is_an_error_of_its_own(driver: Path) -> None:
    run(
        driver,
        """
device = CudaDevice()
try:
    device.allocate(2 << 30)
except OutOfDeviceMemory as error:
    assert "CUDA_ERROR_OUT_OF_MEMORY" in error.why and error.remedy
else:
    raise AssertionError
""",
    )


def test_a_gpu_that_is_not_there_and_a_broken_driver_are_refused(driver: Path) -> None:
    body = """
try:
    CudaDevice({})
except WrongTarget as error:
    assert error.remedy and "{}" in error.why, (error.why, error.remedy)
else:
    raise AssertionError
"""
    run(driver, body.format(3, "no GPU 3"))
    run(driver, body.format(0, "999"), FAKE_CUDA_BROKEN="1")
