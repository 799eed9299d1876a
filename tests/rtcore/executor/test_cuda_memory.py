"""The executor's memory and sampler over a driver that only pretends (see tests/ops/test_cuda.py)."""

from __future__ import annotations

import pytest

from tests.ops.test_cuda import driver, run

__all__ = ["driver"]

PRELUDE = """
from rtcore.executor.cuda_memory import DeviceCache, Layout, Staging
from rtcore.executor.cuda_sample import CudaSampler
from rtcore.executor.sample_arrays import no_rows
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
staging.release()
second = Staging(device, 64, staging.address)
second.release()
""",
    )
    assert launches == []


def test_what_is_chosen_crosses_as_far_as_it_is_asked_for(driver: pytest.TempPathFactory) -> None:
    launches = run(
        driver,  # type: ignore[arg-type]
        PRELUDE
        + """
from dataclasses import replace
sampling(device)
sampler = CudaSampler(device, 4, 160, 2)
logits = device.allocate(4 * 4 * 160)
def rows(count, **numbers):
    given = np.tile(np.array([1, 0, 0, -1, -1, -1], np.int64), (count, 1))
    for column, value in numbers.items():
        given[:, int(column[1:])] = value
    start = np.zeros(count + 1, np.int32)
    settings = np.tile(np.array([0, 1, 0, 1, 0, 0], np.float32), (count, 1))
    return replace(no_rows(160), settings=settings, numbers=given, token_start=start, bias_start=start)
plain = rows(3)
sampler.queue(logits, plain, 0)
outputs = sampler.read(plain, 0)
assert outputs.ids.shape == outputs.status.shape == (3,) and outputs.top_ids.shape == (3, 0)
told = rows(2, _3=2)
sampler.queue(logits, told, 1)
outputs = sampler.read(told, 1)
assert outputs.top_ids.shape == outputs.top_logprobs.shape == (2, 2) and outputs.logprobs.shape == (2,)
large = replace(told, masks=np.zeros((70_000, 5), np.uint32))
sampler.queue(logits, large, 1)
assert sampler._inputs[1].size == 1 << 21
sampler.queue(logits, no_rows(160), 0)
sampler.release()
""",
    )
    greedy = ["sample_part_read {0} 3 1 128 128", "sample_choose {0} 1 1 128 128"]
    rank = ["sample_rank {0} 3 1 128 128", "sample_logprobs {0} 1 1 128 128"]
    assert launches == [line.format(3) for line in greedy] + 2 * [line.format(2) for line in greedy + rank]
