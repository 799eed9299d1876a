"""The executor's memory and greedy sampler over a driver that only pretends (see tests/ops/test_cuda.py)."""

from __future__ import annotations

import pytest

from tests.ops.test_cuda import driver, run

__all__ = ["driver"]

PRELUDE = """
from rtcore.executor.cuda_memory import DeviceCache, Layout, Staging
from rtcore.executor.cuda_sample import GreedySampler
from rtcore.manifest import CacheTensor

def tensor(name, group):
    shape = (2, 8)
    return CacheTensor(name, name + ".out", 0, group, "k", shape, "float16")

device = CudaDevice()
"""


def test_blocks_are_copied_saved_and_loaded_within_their_group(driver: pytest.TempPathFactory) -> None:
    run(
        driver,  # type: ignore[arg-type]
        PRELUDE
        + """
cache = DeviceCache(device, (tensor("a", 0), tensor("b", 0), tensor("c", 1)), 4, 16)
assert cache.block_bytes == {"a": 512, "b": 512, "c": 512}
content = np.arange(3 * 512, dtype=np.uint8).reshape(3, 512)
blocks = np.array([3, 1], np.int32)
cache.load_blocks(0, blocks, [content[:2], content[1:]])
cache.copy_blocks(0, np.array([3], np.int32), np.array([0], np.int32))
first, second = cache.save_blocks(0, np.array([0, 1, 2], np.int32))
assert (first[:2] == content[:2]).all() and not first[2].any()
assert (second[:2] == content[1:]).all()
(other,) = cache.save_blocks(1, np.array([0, 1, 2, 3], np.int32))
assert not other.any()
cache.release(); cache.release(); device.close()
""",
    )


def test_what_was_taken_is_given_back_when_the_cache_does_not_fit(driver: pytest.TempPathFactory) -> None:
    run(
        driver,  # type: ignore[arg-type]
        PRELUDE
        + """
try:
    DeviceCache(device, (tensor("a", 0), tensor("b", 0)), 1 << 22, 16)
except OutOfDeviceMemory:
    assert not device._held - {0}
else:
    raise AssertionError
""",
    )


def test_a_steps_inputs_cross_together_and_tokens_come_back(driver: pytest.TempPathFactory) -> None:
    launches = run(
        driver,  # type: ignore[arg-type]
        PRELUDE
        + """
layout = Layout.of([("ids", (3,), np.int64), ("tables", (2, 5), np.int32)])
staging = Staging(device, layout.size)
views = staging.views(layout)
views["ids"][:], views["tables"][:] = [1, 2, 3], 7
staging.send(layout)
found = np.zeros(10, np.int32)
device.to_host(found, staging.address + layout.places["tables"][0])
assert (found == 7).all()
device.add_kernel(kernel(arguments="PPPIi")); device.add_kernel(whole())
sampler = GreedySampler(device, 4, 160)
outputs = sampler.run(device.allocate(4 * 4 * 160), 3)
assert outputs.ids.shape == outputs.status.shape == (3,) and outputs.top_ids.shape == (3, 0)
sampler.release()
""",
    )
    assert launches == ["argmax_part_entry 3 3 1 128 128", "argmax_entry 3 1 1 128 128"]
