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
from ops.cuda import CudaDevice, Kernel, SampleCall, misfit
from ops.errors import EngineError, OutOfDeviceMemory, WrongTarget

def kernel(key="sample_feed", arguments="PPPi", constants={"BLOCK": 64}, **changed):
    fields = dict(key=key, entry=key.replace("/", "_"), arguments=arguments, warps=4, shared=128, rows=1 << 30,
                  columns=0, constants=constants, image=b"cubin")
    return Kernel(**{**fields, **changed})

def sampling(device, arguments="PPPPPPPiii"):
    for key, letters in (
        *(("sample_part/read", arguments), ("sample_part/copied", "PPPPPPPiii"), ("sample_lists", "PPPPPPPPPPi")),
        *(("sample_weigh", "PPPPPPPii"), ("sample_gather", "PPPPPPPPPPii"), ("sample_choose", "PPPPPPPPPPPPii")),
        *(("sample_rank", "PPPPPPPii"), ("sample_logprobs", "PPPPPPPPPPPPPii"), ("sample_feed", "PPPi")),
    ):
        device.add_kernel(kernel(key, letters, {"PART": 64, "PARTS": 4, "ROOM": 32, "TOPS": 20, "BLOCK": 64}))
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
device.add_kernel(kernel())
memory = device.allocate(4096)
device.feed(memory, memory + 1024, memory + 2048, 160)
device.wait(device.record())
""",
    )
    assert launches == ["sample_feed 3 1 1 128 128"]


def test_only_the_kernels_that_rows_ask_for_are_launched(driver: Path) -> None:
    body = """
device = CudaDevice()
sampling(device)
memory = device.allocate(1 << 16)
names = [name for name, _ in SampleCall._fields_ if name not in ("rows", "columns", "masked", "listed", "drawn", "cut", "told")]
device.reserve_sample(3, 160)
device.sample(SampleCall(**dict.fromkeys(names, memory), rows=3, columns=160, {}))
"""  # noqa: E501
    part, row = "3 3 1 128 128", "3 1 1 128 128"
    greedy = [f"sample_part_read {part}", f"sample_choose {row}"]
    assert run(driver, body.format("")) == greedy
    assert run(driver, body.format("drawn=1")) == [greedy[0], f"sample_weigh {part}", greedy[1]]
    assert run(driver, body.format("drawn=1, cut=1, masked=1")) == [
        *(f"sample_part_copied {part}", greedy[0], f"sample_weigh {part}", f"sample_gather {part}", greedy[1]),
    ]
    assert run(driver, body.format("listed=1, told=1")) == [
        *(f"sample_part_copied {part}", f"sample_lists {row}", *greedy),
        *(f"sample_rank {part}", f"sample_logprobs {row}"),
    ]


def test_a_vocabulary_beyond_the_kernels_is_refused(driver: Path) -> None:
    run(
        driver,
        """
device = CudaDevice()
sampling(device)
device.reserve_sample(1, 256)
try:
    device.reserve_sample(1, 257)
except EngineError as error:
    assert "no vocabulary of 257" in error.why
else:
    raise AssertionError
""",
    )


def test_a_kernel_that_waits_by_itself_may_start_early(driver: Path) -> None:
    launches = run(
        driver,
        """
device = CudaDevice()
device.add_kernel(kernel(constants={"BLOCK": 64, "DEPENDENT": 1}))
memory = device.allocate(4096)
device.feed(memory, memory + 1024, memory + 2048, 160)
""",
    )
    assert launches == ["sample_feed 3 1 1 128 128 early"]


def test_arguments_that_do_not_fit_are_refused_with_the_kernels_name(driver: Path) -> None:
    launches = run(
        driver,
        """
device = CudaDevice()
device.add_kernel(kernel(arguments="PPPI"))
memory = device.allocate(4096)
for tokens, ids in ((100, memory), (160, memory + 8)):
    try:
        device.feed(memory, memory, ids, tokens)
    except EngineError as error:
        assert "kernel sample_feed" in error.why and "multiples of 16" in error.why, error.why
        assert error.why.endswith(misfit())
    else:
        raise AssertionError(tokens)
""",
    )
    assert not launches


def test_a_kernel_that_the_bundle_lacks_is_named(driver: Path) -> None:
    run(
        driver,
        """
device = CudaDevice()
try:
    device.feed(0, 0, 0, 1)
except EngineError as error:
    assert "packs no kernel sample_feed" in error.why and error.why.endswith(misfit())
else:
    raise AssertionError
""",
    )


def test_a_kernel_without_what_it_was_compiled_with_does_not_fit(driver: Path) -> None:
    run(
        driver,
        """
device = CudaDevice()
device.add_kernel(kernel(constants={}))
device.add_kernel(kernel("sample_part/read", constants={"PART": 0}))
for call in (lambda: device.feed(0, 0, 0, 1), lambda: device.reserve_sample(1, 64)):
    try:
        call()
    except EngineError as error:
        assert error.why.endswith(misfit()), error.why
    else:
        raise AssertionError
""",
    )


def test_every_operator_that_asks_for_another_export_says_so_alike() -> None:
    """The text is how a bundle that does not fit is told from a step that failed, so it stands in one place."""
    sources = sorted((Path(__file__).parents[2] / "ops" / "src").glob("*.[ch]*"))
    assert [path.name for path in sources if "xport the model anew" in path.read_text()] == ["failure.h"]


def test_what_was_opened_is_given_back_when_cublas_is_missing(driver: Path, tmp_path: Path) -> None:
    """One that lacks a function stands for one that is not there: other tests' processes may find a real one."""
    alone = tmp_path / "driver"
    alone.mkdir()
    (alone / "libcuda.so.1").symlink_to((driver / "libcuda.so.1").resolve())
    compiler = str(shutil.which("cc"))
    source = "int cublasCreate_v2(void **h) { return 0; }"
    command = [compiler, "-shared", "-fPIC", "-x", "c", "-o", str(alone / "libcublas.so.13"), "-"]
    subprocess.run(command, input=source, text=True, check=True)
    run(
        alone,
        """
import ctypes
try:
    CudaDevice()
except WrongTarget as error:
    assert "cuBLAS" in error.why, error.why
else:
    raise AssertionError
held = ctypes.CDLL("libcuda.so.1").fake_held
assert held() == 0, held()
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
        assert "sample_feed" in error.why
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


@pytest.mark.parametrize(("cache", "further"), [("FLOAT16", 0), ("INT8", 2)])
def test_a_graph_names_no_scales_that_its_cache_does_not_have(driver: Path, cache: str, further: int) -> None:
    """Without a GPU a session ends where it looks for a provider: after it has taken the graph as valid."""
    pytest.importorskip("onnx")
    run(
        driver,
        f"""
import onnx, onnxruntime
from onnx import TensorProto, helper
from ops.library import register_cuda

CACHE, FURTHER = TensorProto.{cache}, {further}
HALF, INT32, FLOAT = TensorProto.FLOAT16, TensorProto.INT32, TensorProto.FLOAT
inputs = {{
    "q": (HALF, ["t", 64]), "k": (HALF, ["t", 64]), "v": (HALF, ["t", 64]),
    "k_cache": (CACHE, ["b", 16, 1, 64]), "v_cache": (CACHE, ["b", 16, 1, 64]),
    "tables": (INT32, ["s", "c"]), "slots": (INT32, ["t"]), "starts": (INT32, ["s1"]), "lengths": (INT32, ["s"]),
    "positions": (TensorProto.INT64, ["t"]), "plan": (INT32, ["p"]), "rope": (FLOAT, ["m", 64]),
}}
scales = {{name: (FLOAT, ["b", 16, 1]) for name in ("k_scale", "v_scale")[:FURTHER]}}
outputs = {{"out": inputs["q"], "k_out": inputs["k_cache"], "v_out": inputs["v_cache"]}}
outputs |= {{f"{{name}}_out": given for name, given in scales.items()}}
names = [*inputs] + (["", "", "", *scales] if FURTHER else [])
attributes = dict(num_heads=1, num_kv_heads=1, head_dim=64, scale=0.125, window=0, softcap=0.0, rotary_dim=64)
node = helper.make_node("PagedAttention", names, [*outputs], domain="ai.ortolan", **attributes)
value = lambda named: [helper.make_tensor_value_info(name, *given) for name, given in named.items()]
graph = helper.make_graph([node], "attention", value(inputs | scales), value(outputs))
imports = [helper.make_opsetid("", 21), helper.make_opsetid("ai.ortolan", 1)]
model = helper.make_model(graph, opset_imports=imports, ir_version=10)
device = CudaDevice()
options = onnxruntime.SessionOptions()
register_cuda(options, device.number, "float16")
try:
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
except Exception as error:
    assert "NOT_IMPLEMENTED" in str(error), error
else:
    raise SystemExit("the session was created")
""",
    )
