"""``ortolan bench http`` against a server over a fake engine, and against none."""

from __future__ import annotations

import asyncio
import itertools

import pytest

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
        await asyncio.sleep(0.5)
        await server.engine.close()
        [answer] = await running
    assert answer.pieces and answer.failure


@in_loop
async def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no server .* at http://127\.0\.0\.1:9/v1"):
        await HttpLoad("http://127.0.0.1:9", LOAD).run()


def test_rates_and_percentiles() -> None:
    answers = [Answer(0.0, [0.1, 0.2, 0.4], 10, 3), Answer(1.0, [1.3, 1.4, 2.0], 10, 8), Answer(0.0, failure="x")]
    found = report(LOAD, answers)
    assert (found.seconds, found.answered, found.failures) == (2.0, 2, {"x": 1})
    assert (found.prompt_tokens_per_second, found.answer_tokens_per_second) == (10.0, 5.5)
    assert found.first_token_ms is not None and found.first_token_ms.median == pytest.approx(200)
    assert found.token_ms is not None and found.token_ms.highest == pytest.approx(150)
    assert found.gap_ms is not None and found.gap_ms.highest == pytest.approx(600)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--requests", "0"], "--requests is 0; it must be at least 1"),
        (["--rate", "-1"], "--rate is -1.0; it must be at least 0"),
        (["--prompt", "4", "--prefix", "5"], "--prefix is 5, but prompts have 4 tokens"),
    ],
)
def test_wrong_numbers_are_refused(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "http", "http://127.0.0.1:9", *flags]) != 0
    assert message in capsys.readouterr().err
