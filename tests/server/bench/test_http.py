"""``ortolan bench http`` against a server over a fake engine, and against none."""

from __future__ import annotations

import asyncio
import itertools
import signal
import sys
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from ops.errors import ConfigError
from server.bench.http_load import Answer, HttpLoad, Load
from server.bench.http_report import report, table
from server.cli import main
from tests.server.conftest import Running, Serve

in_loop = pytest.mark.asyncio(loop_scope="module")
LOAD = Load(requests=6, prompt=12, prefix=5, answer=4, rate=0.0, concurrency=0, vocabulary=50, seed=3)


def changed(**fields: object) -> Load:
    return Load(**{name: getattr(LOAD, name) for name in LOAD.__struct_fields__} | fields)  # type: ignore[arg-type]


@in_loop
@pytest.mark.parametrize("fields", [{}, {"concurrency": 2}, {"rate": 200.0}], ids=["at once", "bounded", "a rate"])
async def test_every_request_is_answered_and_counted(running: Running, fields: dict[str, object]) -> None:
    load = changed(**fields)
    answers = await HttpLoad(running.url, load).run()
    assert [(answer.prompt_tokens, answer.answer_tokens, answer.failure) for answer in answers] == [(12, 4, "")] * 6
    for answer in answers:
        assert answer.pieces == sorted(answer.pieces) and answer.pieces[0] >= answer.due
    found = report(load, answers)
    assert found.answered == 6 and found.seconds == max(answer.pieces[-1] for answer in answers)
    assert found.answer_tokens_per_second == pytest.approx(24 / found.seconds)
    assert found.first_token_ms is not None and found.first_token_ms.highest >= found.first_token_ms.median > 0
    assert "6 of 6 requests answered" in table(found)


@in_loop
async def test_no_more_are_open_than_allowed(running: Running) -> None:
    answers = await HttpLoad(running.url + "/v1/", changed(concurrency=1)).run()
    spans = sorted((answer.due, answer.pieces[-1]) for answer in answers)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))


@in_loop
async def test_what_is_refused_is_told(running: Running) -> None:
    answers = await HttpLoad(running.url, LOAD, model="another").run()
    found = report(LOAD, answers)
    assert found.answered == 0 and found.first_token_ms is None
    [(text, count)] = found.failures.items()
    assert count == 6 and text.startswith("status 404") and "another" in text
    assert "6 failed: status 404" in table(found)


@in_loop
async def test_an_answer_that_breaks_off_is_none(serve: Serve) -> None:
    async with serve("slow") as server:
        running = asyncio.create_task(HttpLoad(server.url, changed(requests=1, answer=500)).run())
        while (await server.engine.stats()).steps < 2:
            await asyncio.sleep(0.01)
        await server.engine.close()
        [answer] = await running
    assert answer.pieces and answer.failure


@pytest.mark.parametrize(
    ("end", "failure"),
    [
        (b'data: {"usage": {"prompt_tokens": 3, "completion_tokens": 2}}\n\ndata: [DONE]\n\n', ""),
        (b'data:{"usage":{"prompt_tokens":3,"completion_tokens":2}}\r\n\r\ndata:[DONE]\r\n\r\n', ""),
        (b'data: {"choices": [], "usage": null}\n\ndata: [DONE]\n\n', "ended without its usage"),
        (b'cut": 1}\n\ndata: {"error": {"message": "too slow"}}\n\n', "error: too slow"),
        (b'data: {"error": "too slow"}\n\n', "error: too slow"),
        (b'data: {"choi', "another form"),
        (b"", "ended without its usage"),
    ],
)
async def test_any_end_of_an_answer_is_understood(end: bytes, failure: str) -> None:
    async def reply(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(end)
        return response

    answer = await answer_of(reply)
    assert failure in answer.failure and bool(failure) == bool(answer.failure)
    assert (answer.prompt_tokens, answer.answer_tokens) == ((0, 0) if failure else (3, 2))


async def test_a_refusal_that_is_no_text_is_told() -> None:
    async def refuse(_: web.Request) -> web.StreamResponse:
        return web.Response(status=500, body=b"\xff no text", content_type="text/plain", charset="utf-8")

    assert (await answer_of(refuse)).failure.startswith("status 500: \ufffd no text")


async def test_a_connection_that_breaks_is_told() -> None:
    async def leave(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    assert "Disconnected" in (await answer_of(leave)).failure


async def test_an_interrupt_tells_what_there_is() -> None:
    came: asyncio.Queue[None] = asyncio.Queue()

    async def reply(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b'data: {"usage": {"prompt_tokens": 3, "completion_tokens": 2}}\n\ndata: [DONE]\n\n')
        first = came.empty()
        await came.put(None)
        if not first:
            await asyncio.sleep(60)
        return response

    app = web.Application()
    app.router.add_post("/v1/completions", reply)
    async with TestServer(app) as server:
        flags = ["--model", "any", "--requests", "2", "--prompt", "3", "--answer", "2"]
        command = [sys.executable, "-m", "server.cli", "bench", "http", str(server.make_url("/")), *flags]
        child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        while came.qsize() < 2:
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.3)
        child.send_signal(signal.SIGINT)
        told, _ = await asyncio.wait_for(child.communicate(), 30)
    assert child.returncode == 1
    assert b"1 of 2 requests answered" in told and b"1 failed: not answered when the load was ended" in told


async def answer_of(reply: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> Answer:
    """What one request comes to where the server replies so."""
    app = web.Application()
    app.router.add_post("/v1/completions", reply)
    async with TestServer(app) as server:
        [answer] = await HttpLoad(str(server.make_url("/")), changed(requests=1), model="any").run()
    return answer


@in_loop
async def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no server .* at http://127\.0\.0\.1:9/v1"):
        await HttpLoad("http://127.0.0.1:9", LOAD).run()


def test_rates_and_percentiles() -> None:
    answers = [Answer(0.0, [0.1, 0.2, 0.4], 10, 3), Answer(1.0, [1.3, 1.4, 2.0], 10, 8), Answer(0.0, failure="x")]
    found = report(LOAD, answers)
    assert (found.seconds, found.answered, found.failures) == (2.0, 2, {"x": 1})
    assert (found.prompt_tokens_per_second, found.answer_tokens_per_second) == (10.0, 5.5)
    assert found.short == 1 and "1 answers have fewer than 4 tokens" in table(found)
    assert found.first_token_ms is not None and found.first_token_ms.median == pytest.approx(200)
    assert found.token_ms is not None and found.token_ms.highest == pytest.approx(150)
    assert found.gap_ms is not None and found.gap_ms.highest == pytest.approx(600)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--requests", "0"], "--requests is 0; it must be at least 1"),
        (["--rate", "nan"], "--rate is nan; it must be at least 0"),
        (["--key", "a\nb"], "--key has characters that no header may have"),
        (["--rate", "inf"], "--rate is inf"),
        (["--rate", "-1"], "--rate is -1.0; it must be at least 0"),
        (["--prompt", "4", "--prefix", "5"], "--prefix is 5, but prompts have 4 tokens"),
    ],
)
def test_wrong_numbers_are_refused(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "http", "http://127.0.0.1:9", *flags]) != 0
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "ftp://x", "http://[::1", "http://x:99999"])
def test_what_is_no_address_is_refused(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "http", url, "--model", "any"]) != 0
    assert "is no address of a server" in capsys.readouterr().err
