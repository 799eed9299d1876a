"""How soon the server is ready and what memory it takes; slow, for both need a quiet machine."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import psutil
import pytest

from rtcore.bundle import Bundle
from server.bench.ceilings import Ceilings
from server.bench.floors import Floors
from tests.e2e.server_process import ServerProcess
from tests.reference.smollm2 import Entry, reference

READY_SECONDS = 3.0
STARTS = 5
OVERHEAD_BYTES = 300 * 10**6
REQUESTS = 16
TOKENS = 64

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(params=["fp32", "int8"])
def precision(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_ready_within_three_seconds(smollm2_bundle: Path, tmp_path: Path, precision: str) -> None:
    seconds = []
    for _ in range(STARTS):
        with ServerProcess(smollm2_bundle, tmp_path / "log", "--precision", precision) as server:
            seconds.append(server.ready_seconds)
    print(f"{precision}: ready after {', '.join(f'{value:.2f}' for value in seconds)} s")
    assert sorted(seconds)[STARTS // 2] <= READY_SECONDS


def test_memory_after_sixteen_requests(smollm2_bundle: Path, tmp_path: Path, precision: str) -> None:
    entries = sorted(reference().prompts, key=lambda entry: len(entry.prompt_ids))[-REQUESTS:]
    bundle = Bundle.open(smollm2_bundle, check="sizes")
    variant = bundle.variant(precision, "cpu")
    floors = Floors(bundle.manifest, variant, Ceilings(1, 1.0, 1.0, 1.0))
    written = sum(floors.cache_bytes(len(entry.prompt_ids) + TOKENS) for entry in entries)
    bundle.close()
    with ServerProcess(smollm2_bundle, tmp_path / "log", "--precision", precision) as server:
        client = openai.OpenAI(base_url=f"{server.base}/v1", api_key="none", max_retries=0)
        model = client.models.list().data[0].id

        def ask(entry: Entry) -> int:
            answer = client.completions.create(
                model=model,
                prompt=entry.prompt_ids,
                max_tokens=TOKENS,
                temperature=0,
                extra_body={"ignore_eos": True},
            )
            assert answer.usage is not None
            return answer.usage.completion_tokens

        with ThreadPoolExecutor(REQUESTS) as pool:
            assert list(pool.map(ask, entries)) == [TOKENS] * REQUESTS
        top = psutil.Process(server.process.pid)
        taken = [process.memory_full_info().pss for process in (top, *top.children(recursive=True))]
    bound = variant.linear_bytes + written + OVERHEAD_BYTES
    shown = " + ".join(f"{value / 1e6:.0f}" for value in taken)
    print(
        f"{precision}: PSS {shown} MB; bound {bound / 1e6:.0f} MB = weights {variant.linear_bytes / 1e6:.0f} "
        f"+ written cache {written / 1e6:.0f} + {OVERHEAD_BYTES / 1e6:.0f}"
    )
    assert sum(taken) <= bound
