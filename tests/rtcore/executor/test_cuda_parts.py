"""The parts of the executor cuda that need no GPU, and how a machine without one is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ops.cuda import CudaDevice, misfit
from ops.errors import BundleDamaged, ConfigError, EngineError, WrongTarget
from rtcore.bundle import Bundle
from rtcore.config import EngineConfig
from rtcore.executor import cuda
from rtcore.executor.cuda_buckets import bucket_for, bucket_sizes
from rtcore.executor.cuda_kernels import choose_architecture, load_kernels, of_bundle
from rtcore.executor.cuda_memory import Layout
from rtcore.executor.cuda_sample import _merged
from rtcore.executor.sample_arrays import no_rows
from rtcore.kernels import index_of
from rtcore.manifest import CacheGroup, Variant

PACKED = ("sm_80", "sm_86", "sm_90", "gfx942")


@pytest.mark.parametrize(
    ("device", "chosen"), [(80, "sm_80"), (86, "sm_86"), (87, "sm_86"), (89, "sm_86"), (90, "sm_90")]
)
def test_the_nearest_packed_architecture_is_taken(device: int, chosen: str) -> None:
    assert choose_architecture(device, PACKED) == chosen


@pytest.mark.parametrize("device", [75, 100, 120, 91])
def test_another_major_version_runs_none(device: int) -> None:
    assert choose_architecture(device, (*PACKED, "sm_\u00b2", "sm_")) is None


def test_steps_are_padded_to_the_next_captured_size() -> None:
    sizes = bucket_sizes(20)
    assert sizes == (1, 2, 4, 8, 16, 20)
    assert [bucket_for(rows, sizes) for rows in (1, 3, 16, 17, 20, 21)] == [1, 4, 16, 20, 20, None]
    assert bucket_sizes(1) == (1,)


def test_staged_arrays_lie_apart_and_aligned() -> None:
    layout = Layout.of([("a", (3,), np.int64), ("b", (2, 50), np.int32), ("c", (), np.int32)])
    assert layout.places["a"] == (0, (3,), np.dtype(np.int64))
    assert layout.places["b"][0] == 256
    assert layout.places["c"][0] == 256 + 512
    assert layout.size == 256 + 512 + 256


class Device:
    """What load_kernels asks of a GPU."""

    name, architecture = "NVIDIA Test", 75

    def __init__(self) -> None:
        self.kernels: list[str] = []

    def add_kernel(self, kernel: object) -> None:
        self.kernels.append(kernel.key)  # type: ignore[attr-defined]


def variant(*architectures: str) -> Variant:
    return Variant("bf16", "cuda", "graphs/bf16.onnx", (), (CacheGroup(),), (), architectures=architectures)


def test_a_bundle_without_this_gpus_kernels_lists_what_it_packs(tiny_bundle: object) -> None:
    with Bundle.open(str(tiny_bundle), check="sizes") as bundle, pytest.raises(WrongTarget) as caught:
        load_kernels(bundle, variant(*PACKED), Device())  # type: ignore[arg-type]
    assert "sm_75" in caught.value.what
    assert "sm_80, sm_86, sm_90, gfx942" in caught.value.why
    assert "cuda:75" in caught.value.remedy


def test_a_bundle_whose_kernels_are_gone_is_damaged(tiny_bundle: object) -> None:
    device = Device()
    device.architecture = 90
    with Bundle.open(str(tiny_bundle), check="sizes") as bundle, pytest.raises(BundleDamaged) as caught:
        load_kernels(bundle, variant("sm_90"), device)  # type: ignore[arg-type]
    assert index_of("sm_90") in caught.value.what


def test_operators_that_ask_for_another_export_say_that_the_bundle_does_not_fit() -> None:
    variant = Variant("bf16", "cuda", "graphs/bf16.cuda.step.onnx", (), (), ())
    asked = EngineError("A step failed.", why=f"the bundle packs no kernel x.{misfit()}")
    found = of_bundle(asked, variant)
    assert isinstance(found, BundleDamaged) and found.why == "the bundle packs no kernel x."
    assert "anew" in found.remedy
    assert of_bundle(EngineError("A step failed.", why="an illegal address"), variant) is None


def test_a_machine_without_the_driver_is_refused_with_the_remedy() -> None:
    try:
        device = CudaDevice()
    except WrongTarget as error:
        assert "driver" in f"{error.why} {error.remedy}"
        assert error.remedy
        return
    device.close()
    pytest.skip("this machine has a GPU")


def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises((WrongTarget, EngineError)):
        CudaDevice(97)


def test_a_token_is_biased_once() -> None:
    """The GPU adds all biases of a row at once, so one that a token has twice would be lost."""
    rows = no_rows(64)
    twice = replace(
        rows,
        bias_start=np.array([0, 3, 3, 5], np.int32),
        bias_ids=np.array([7, 3, 7, 7, 2], np.int32),
        bias_values=np.array([1.0, -np.inf, 0.5, 4.0, 2.0], np.float32),
    )
    found = _merged(twice)
    assert found.bias_start.tolist() == [0, 2, 2, 4]
    assert found.bias_ids.tolist() == [3, 7, 2, 7]
    assert found.bias_values.tolist() == [-np.inf, 1.5, 2.0, 4.0]
    once = replace(twice, bias_start=np.array([0, 2, 2, 2], np.int32), bias_ids=np.array([7, 3], np.int32))
    assert _merged(once) is once and _merged(rows) is rows


def test_a_profile_is_refused() -> None:
    with pytest.raises(ConfigError, match="profile"):
        cuda.load(None, None, EngineConfig(target="cuda", profile="x"))  # type: ignore[arg-type]
