"""HTTP that is wrong, huge, slow or no HTTP at all: a clear answer or a closed connection; the server lives."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.server.conftest import Running, Serve

in_module_loop = pytest.mark.asyncio(loop_scope="module")
JSON = {"Content-Type": "application/json"}
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


def error_of(body: Any, code: str) -> str:
    assert body["error"]["code"] == code, body
    message: str = body["error"]["message"]
    return message


async def raw(running: Running, data: bytes, timeout: float = 5) -> bytes:
    """Send bytes, and return all that comes until the server closes or is silent."""
    host, port = running.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    received = b""
    try:
        writer.write(data)
        async with asyncio.timeout(timeout):
            while chunk := await reader.read(65536):
                received += chunk
    except (TimeoutError, ConnectionError):
        return received
    finally:
        writer.close()
    return received


async def alive(running: Running) -> None:
    status, body = await running.complete("x", max_tokens=2)
    assert status == 200, body
    assert running.engine.in_flight == 0


@in_module_loop
async def test_paths_and_methods(running: Running) -> None:
    async with running.http.get("/v1/embeddings") as response:
        assert response.status == 404
        assert "/v1/embeddings" in error_of(await response.json(), "not_found")
    for method, path, allowed in (
        ("GET", "/v1/completions", "POST"),
        ("DELETE", "/v1/models", "GET"),
        ("PUT", "/v1/chat/completions", "POST"),
        ("POST", "/health", "GET"),
    ):
        async with running.http.request(method, path) as response:
            assert response.status == 405
            assert allowed in response.headers["Allow"]
            error_of(await response.json(), "method_not_allowed")
    async with running.http.get("/" + "x" * 5000) as response:
        assert response.status == 404
        assert len(await response.text()) < 1000
    await alive(running)


@in_module_loop
@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "application/xml", "application/json2", ""]
)
async def test_other_media_types(running: Running, kind: str) -> None:
    async with running.http.post("/v1/completions", data=b"{}", headers={"Content-Type": kind}) as response:
        assert response.status == 415
        assert "application/json" in error_of(await response.json(), "unsupported_media_type")
    headers = {"Content-Type": "application/json; charset=utf-8"}
    data = json.dumps({"prompt": "x", "max_tokens": 1})
    async with running.http.post("/v1/completions", data=data, headers=headers) as response:
        assert response.status == 200


async def test_bodies_that_are_too_large(serve: Serve) -> None:
    async with serve(max_body_bytes=10_000) as running:
        big = json.dumps({"prompt": "x" * 20_000}).encode()

        async def chunks() -> AsyncIterator[bytes]:
            for start in range(0, len(big), 1000):
                yield big[start : start + 1000]

        for data in (big, chunks()):
            async with running.http.post("/v1/completions", data=data, headers=JSON) as response:
                assert response.status == 413
                assert "10000 bytes" in error_of(await response.json(), "request_too_large")
        packed = gzip.compress(json.dumps({"prompt": "x" * 50_000_000}).encode())
        headers = {**JSON, "Content-Encoding": "gzip"}
        async with running.http.post("/v1/completions", data=packed[:9000], headers=headers) as response:
            assert response.status in (400, 413)
        await alive(running)


async def test_a_body_that_unpacks_to_too_much(serve: Serve) -> None:
    async with serve(max_body_bytes=100_000) as running:
        packed = gzip.compress(b" " * 50_000_000)
        assert len(packed) < 100_000
        headers = {**JSON, "Content-Encoding": "gzip"}
        async with running.http.post("/v1/completions", data=packed, headers=headers) as response:
            assert response.status == 413
        await alive(running)


async def test_a_body_that_never_ends_is_given_up(serve: Serve) -> None:
    async with serve(body_timeout=0.3) as running:
        answer = await raw(running, POST + b'Content-Length: 100\r\n\r\n{"prompt"')
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"request_timeout" in answer
        await alive(running)


async def test_many_slow_bodies_do_not_hold_up_others(serve: Serve) -> None:
    async with serve(body_timeout=2) as running:
        slow = [asyncio.create_task(raw(running, POST + b"Content-Length: 100\r\n\r\n")) for _ in range(100)]
        await alive(running)
        assert not any(task.done() for task in slow)
        answers = await asyncio.gather(*slow)
        assert all(answer.startswith(b"HTTP/1.1 408 ") for answer in answers)


@in_module_loop
@pytest.mark.parametrize(
    "data",
    [
        b"\r\n\r\n",
        b"hello\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost x\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\nX-A: " + b"a" * 100_000 + b"\r\n\r\n",
        POST + b"Content-Length: -1\r\n\r\n",
        POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        bytes(range(256)) * 20,
    ],
)
async def test_what_is_not_http(running: Running, data: bytes) -> None:
    answer = await raw(running, data, timeout=0.5)
    assert answer == b"" or answer.split(b" ")[1][:1] == b"4", answer[:200]
    assert b"Traceback" not in answer
    await alive(running)


@in_module_loop
async def test_large_prompts_do_not_hold_up_others(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokenising megabytes takes a while; the event loop goes on meanwhile."""
    entered, released = threading.Event(), threading.Event()
    tokenizer = type(running.service.text.tokenizer)
    encode = tokenizer.encode

    def slow(self: Any, text: str, *given: Any) -> list[int]:
        if len(text) > 1000:
            entered.set()
            assert released.wait(30)
        return encode(self, text, *given)

    monkeypatch.setattr(tokenizer, "encode", slow)
    large = asyncio.create_task(running.complete("The quick brown fox jumps over the lazy dog. " * 10_000))
    assert await asyncio.to_thread(entered.wait, 30)
    await alive(running)
    assert not large.done()
    released.set()
    status, body = await large
    assert (status, body["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize("sent", [b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nHost: x\r\nX-"])
async def test_a_connection_that_never_asks_is_closed(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr("server.app.KEEPALIVE_SECONDS", 0.5)
    async with serve() as running:
        began = asyncio.get_running_loop().time()
        assert await raw(running, sent) == b""
        assert asyncio.get_running_loop().time() - began < 4
        await alive(running)
