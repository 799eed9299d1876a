"""Engine deaths, disconnects, slow readers and draining, seen from a client."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from ops.errors import BundleDamaged, EngineUnavailable
from tests.rtcore.process import fakes
from tests.rtcore.process.running import until
from tests.server.conftest import Running, Serve
from tests.server.fake_bundle import NAME


def engine_pid(running: Running) -> int:
    connection = running.engine._supervisor.connection
    assert connection is not None
    return connection.child.process.pid


async def idle(running: Running) -> bool:
    stats = await running.engine.stats()
    return bool(stats.running == stats.waiting == 0)


async def until_idle(running: Running) -> None:
    async with asyncio.timeout(10):
        while not await idle(running):
            await asyncio.sleep(0.02)


async def test_killed_while_streaming(serve: Serve) -> None:
    async with serve("slow") as running:
        client = running.client()
        stream = await client.chat.completions.create(
            model=NAME, messages=[{"role": "user", "content": "the rain in Spain"}], max_tokens=4000, stream=True
        )
        other = asyncio.create_task(running.complete([7], max_tokens=4000))
        seen = 0
        with pytest.raises(openai.APIError) as raised:
            async for _ in stream:
                seen += 1
                if seen == 3:
                    os.kill(engine_pid(running), signal.SIGKILL)
        assert seen >= 3
        assert "died" in raised.value.message
        assert raised.value.code == "engine_died"
        status, body = await other
        assert (status, body["error"]["code"], body["error"]["type"]) == (503, "engine_died", "server_error")

        async with running.http.get("/ready") as response:
            assert response.status == 503
            assert int(response.headers["Retry-After"]) >= 1
            ready = await response.json()
        assert ready["engine"] == "restarting"
        assert "SIGKILL" in ready["reason"]
        async with running.http.post("/v1/completions", json={"prompt": "x"}) as response:
            assert response.status == 503
            assert int(response.headers["Retry-After"]) >= 1
            assert (await response.json())["error"]["code"] == "engine_unavailable"
        async with running.http.get("/health") as response:
            assert response.status == 200

        await until(lambda: running.engine.state == "ready")
        assert (await running.complete("the rain", max_tokens=2))[0] == 200
        async with running.http.get("/ready") as response:
            assert response.status == 200
            assert (await response.json())["restarts"] == 1


async def test_an_error_event_ends_the_stream_without_done(serve: Serve) -> None:
    async with serve("slow") as running:
        body = {"prompt": [7], "max_tokens": 4000, "stream": True, "ignore_eos": True}
        async with running.http.post("/v1/completions", json=body) as response:
            assert response.status == 200
            assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
            await response.content.readline()
            os.kill(engine_pid(running), signal.SIGKILL)
            events = [line async for line in response.content if line.strip()]
        assert "error" in json.loads(events[-1].removeprefix(b"data: "))
        assert b"[DONE]" not in b"".join(events)


async def test_an_engine_that_dies_at_every_start(serve: Serve) -> None:
    async with serve("dies", wait=False, supervision={"failed_after": 2}) as running:
        with pytest.raises(EngineUnavailable):
            await running.engine.start()
        for path, body in (("/v1/completions", {"prompt": "x"}), ("/ready", None), ("/health", None)):
            async with running.http.request("GET" if body is None else "POST", path, json=body) as answer:
                text = await answer.text()
            assert answer.status == 503, text
            assert "out of luck" in text
            assert "Retry-After" in answer.headers
        async with running.http.get("/v1/models") as answer:
            assert answer.status == 200


async def test_a_damaged_bundle_is_raised_at_the_first_start(serve: Serve) -> None:
    async with serve("damaged", wait=False) as running:
        with pytest.raises(BundleDamaged):
            await running.engine.start()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_a_client_that_leaves_ends_its_request(serve: Serve, path: str, stream: bool) -> None:
    async with serve("slow") as running:
        message = {"messages": [{"role": "user", "content": "x"}]} if "chat" in path else {"prompt": [7]}
        body = {**message, "max_tokens": 4000, "stream": stream, "ignore_eos": True, "n": 2}
        asked = asyncio.create_task(running.post(path, body))
        await until(lambda: running.engine.in_flight == 2)
        async with asyncio.timeout(5):
            while (await running.engine.stats()).running < 2:
                await asyncio.sleep(0.01)
        asked.cancel()
        await until(lambda: running.engine.in_flight == 0)
        await until_idle(running)


async def test_a_reader_that_stalls_is_cut_off_and_costs_no_memory(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve("quick", write_timeout=0.5, send_buffer=4096) as running:
        text = running.service.text.tokenizer
        longest = max(range(3, 300), key=lambda number: len(text.decode([number])))
        body = {"prompt": [[longest, 7]] * 64, "max_tokens": 2000, "stream": True, "ignore_eos": True}
        raw = json.dumps(body).encode()
        host, port = running.url.removeprefix("http://").split(":")
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect((host, int(port)))
            client.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n" % len(raw) + raw
            )
            await until(lambda: running.engine.in_flight > 0)
            with caplog.at_level(logging.INFO, "ortolan.server"):
                await until(lambda: running.engine.in_flight == 0, 60)
                await until(lambda: any("did not read" in vars(line).get("error", "") for line in caplog.records))
        await until_idle(running)
        assert (await running.complete("x", max_tokens=2))[0] == 200


async def test_a_stuck_engine_is_restarted(serve: Serve) -> None:
    async with serve(supervision={"hang_timeout": 0.6}) as running:
        status, body = await running.complete([fakes.HANG])
        assert status == 503
        assert "did not answer" in body["error"]["message"]
        await until(lambda: running.engine.state == "ready")
        assert (await running.complete("x", max_tokens=2))[0] == 200


@pytest.mark.parametrize("stream", [True, False])
async def test_what_the_engine_refuses_has_its_status(serve: Serve, stream: bool) -> None:
    async with serve() as running:
        status, body = await running.complete([fakes.REFUSED], stream=stream)
        assert (status, body["error"]["param"]) == (400, "prompt")
        body = {"prompt": [fakes.OVERLOADED], "stream": stream}
        async with running.http.post("/v1/completions", json=body) as response:
            assert (response.status, response.headers["Retry-After"]) == (503, "7")
            assert (await response.json())["error"]["code"] == "overloaded"


async def test_loading_is_not_ready_but_healthy(serve: Serve) -> None:
    async with serve("never_loads", wait=False) as running:
        start = asyncio.create_task(running.engine.start())
        await asyncio.sleep(0.1)
        async with running.http.get("/health") as response:
            assert response.status == 200
            assert (await response.json())["engine"] == "starting"
        async with running.http.get("/ready") as response:
            assert response.status == 503
        status, body = await running.complete("x")
        assert (status, body["error"]["code"]) == (503, "engine_unavailable")
        assert "loading" in body["error"]["message"]
        start.cancel()


async def test_a_small_cache_bounds_answers_without_a_limit(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve() as running:
        engine = running.engine.engine
        assert engine is not None
        running.engine.engine = type(engine)(50, engine.vocab_size, engine.load_seconds)
        status, body = await running.chat("hello", ignore_eos=True)
        assert status == 200
        assert body["usage"]["total_tokens"] == 50
        status, body = await running.complete("hello", max_tokens=100)
        assert (status, body["error"]["code"]) == (400, "cache_too_small")
        async with running.http.get("/v1/models") as response:
            assert (await response.json())["data"][0]["max_model_len"] == 50


async def test_the_models_own_sampling_defaults_count(tmp_path: Path, serve: Serve) -> None:
    from tests.server.fake_bundle import write_fake_bundle

    bundle = write_fake_bundle(tmp_path / "b", chat=False, sampling={"temperature": 0.3, "top_k": 7, "top_p": 0.5})
    async with serve(bundle=bundle) as running:
        params = running.service.params({"top_k": None, "top_p": 0.9}, None)
        assert (params.temperature, params.top_k, params.top_p, params.max_tokens) == (0.3, 7, 0.9, None)
        status, body = await running.chat("hello")
        assert (status, body["error"]["param"]) == (400, "messages")
        assert "completions" in body["error"]["message"]


async def test_logs_have_ids_and_no_prompts(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    async with serve() as running:
        with caplog.at_level(logging.DEBUG, "ortolan"):
            headers = {"x-request-id": "my-id.1"}
            async with running.http.post(
                "/v1/completions", json={"prompt": "confidential", "max_tokens": 2}, headers=headers
            ) as response:
                assert response.headers["x-request-id"] == "my-id.1"
            async with running.http.get("/health", headers={"x-request-id": "no good " * 40}) as response:
                assert len(response.headers["x-request-id"]) == 32
        lines = [record for record in caplog.records if record.name == "ortolan.server"]
        assert lines[0].request_id == "my-id.1"  # type: ignore[attr-defined]
        assert (lines[0].completion_tokens, lines[0].status) == (2, 200)  # type: ignore[attr-defined]
        assert not any("confidential" in str(vars(record)) for record in caplog.records)
    async with serve(log_prompts=True) as running:
        with caplog.at_level(logging.INFO, "ortolan"):
            await running.complete("confidential", max_tokens=2)
        assert any("confidential" in str(vars(record)) for record in caplog.records)


async def test_an_unforeseen_error_is_answered_without_its_innards(serve: Serve, monkeypatch: Any) -> None:
    async with serve() as running:

        def broken(*arguments: object) -> None:
            raise ZeroDivisionError("secret")

        monkeypatch.setattr(running.service, "params", broken)
        status, body = await running.complete("x")
        assert status == 500
        assert "secret" not in json.dumps(body)
        assert body["error"]["type"] == "server_error"


async def test_draining_answers_503_and_finishes_what_runs(serve: Serve) -> None:
    async with serve("slow") as running:
        asked = asyncio.create_task(running.complete([7], max_tokens=20, ignore_eos=True))
        await until(lambda: running.engine.in_flight == 1)
        drained = asyncio.create_task(running.engine.drain(10))
        async with running.http.get("/ready") as response:
            assert response.status == 503
            assert (await response.json())["engine"] == "draining"
        async with running.http.post("/v1/completions", json={"prompt": "x"}) as response:
            assert response.status == 503
            assert int(response.headers["Retry-After"]) >= 1
        status, body = await asked
        assert (status, body["usage"]["completion_tokens"]) == (200, 20)
        assert await drained


async def test_keep_alive_serves_many_requests_on_one_connection(serve: Serve) -> None:
    async with serve() as running:
        opened: list[object] = []

        async def note(*arguments: object) -> None:
            opened.append(arguments)

        trace = aiohttp.TraceConfig()
        trace.on_connection_create_end.append(note)
        async with aiohttp.ClientSession(running.url, trace_configs=[trace]) as http:
            for path in ("/health", "/v1/models", "/v1/nothing", "/ready"):
                async with http.get(path) as response:
                    await response.read()
            async with http.head("/v1/models") as response:
                assert response.status == 200
                assert await response.read() == b""
            async with http.post("/v1/completions", json={"prompt": "x", "max_tokens": 1}) as response:
                assert response.status == 200
        assert len(opened) == 1
