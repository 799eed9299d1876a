"""What clients do wrong on a connection is answered in words, and is no error of the server in its log."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import zlib

import aiohttp
import pytest

from tests.server.conftest import Running
from tests.server.test_hostile import JSON, POST, alive, error_of, raw

in_module_loop = pytest.mark.asyncio(loop_scope="module")
BODY = json.dumps({"prompt": "x", "max_tokens": 1}).encode()
LENGTH = b"Content-Length: %d\r\n" % len(BODY)


@in_module_loop
@pytest.mark.parametrize("said", [b"nonsense", b"\xff\xfe", b"100-continue, more"])
async def test_other_expectations_are_refused(
    running: Running, caplog: pytest.LogCaptureFixture, said: bytes
) -> None:
    answer = await raw(running, POST + LENGTH + b"Connection: close\r\nExpect: " + said + b"\r\n\r\n" + BODY)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 417 ")
    assert "100-continue" in error_of(json.loads(body), "expectation_failed")
    assert "Traceback" not in caplog.text
    await alive(running)


@in_module_loop
async def test_a_client_may_ask_before_it_sends(running: Running) -> None:
    headers = {**JSON, "Expect": "100-continue"}
    async with running.http.post("/v1/completions", data=BODY, headers=headers) as response:
        assert response.status == 200


@in_module_loop
@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@pytest.mark.parametrize("damage", ["not packed", "damaged"])
async def test_a_body_that_does_not_unpack(
    running: Running, caplog: pytest.LogCaptureFixture, encoding: str, damage: str
) -> None:
    packed = bytearray(gzip.compress(BODY) if encoding == "gzip" else zlib.compress(BODY))
    packed[12:24] = b"\xff" * 12
    data = BODY if damage == "not packed" else bytes(packed)
    headers = {**JSON, "Content-Encoding": encoding}
    async with running.http.post("/v1/completions", data=data, headers=headers) as response:
        assert response.status == 400
        assert encoding in error_of(await response.json(), "bad_request")
    assert not [record for record in caplog.records if record.exc_info]
    await alive(running)


@in_module_loop
@pytest.mark.parametrize(
    "data",
    [
        b"GET /v1/models/\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        POST + b"Content-Encoding: br\r\n" + LENGTH + b"\r\n" + BODY,
        POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\nzz\r\n",
        POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
    ],
)
async def test_malformed_requests_leave_a_line_and_no_trace(
    running: Running, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    with caplog.at_level(logging.INFO, "ortolan.server"):
        answer = await raw(running, data, timeout=1)
    assert answer.split(b" ")[1] == b"400"
    assert not [record for record in caplog.records if record.exc_info]
    await alive(running)


@in_module_loop
async def test_a_client_that_leaves_its_stream_leaves_no_trace(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    body = {"prompt": [7], "max_tokens": 4000, "stream": True, "ignore_eos": True, "n": 8}
    for _ in range(5):
        async with aiohttp.ClientSession(running.url) as http, http.post("/v1/completions", json=body) as response:
            await response.content.readany()
            response.close()
    async with asyncio.timeout(10):
        while running.engine.in_flight:
            await asyncio.sleep(0.01)
    assert not [record for record in caplog.records if record.exc_info]
    await alive(running)
