"""For whom and how urgently a request is served: from HTTP to what the engine is given."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtcore.request import EngineRequest
from server.tenants import MAX_NAME, salted
from tests.server.conftest import Running, Serve

HEADER = "x-tenant"


class Spy:
    """Keeps what a server gives to its engine."""

    def __init__(self, running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
        self.running = running
        self.seen: list[EngineRequest] = []
        submit = running.engine.stream_all

        def stream_all(requests: list[EngineRequest]) -> Any:
            self.seen += requests
            return submit(requests)

        monkeypatch.setattr(running.engine, "stream_all", stream_all)

    async def terms(self, tenant: str | None = None, **fields: Any) -> EngineRequest:
        """The request that the engine sees for one with these fields."""
        headers = {} if tenant is None else {HEADER: tenant}
        body = {"prompt": "hello", "max_tokens": 1, **fields}
        status, answer = await self.running.post("/v1/completions", body, headers=headers)
        assert status == 200, answer
        return self.seen[-1]


async def test_what_a_request_asks_for_reaches_the_engine(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve() as running:
        spy = Spy(running, monkeypatch)
        request = await spy.terms(priority=-3, queue_timeout=2.5, timeout=60, cache_salt="mine")
        assert (request.priority, request.queue_timeout, request.timeout) == (-3, 2.5, 60)
        assert "mine" in request.cache_salt
        plain = await spy.terms()
        assert (plain.priority, plain.queue_timeout, plain.timeout, plain.cache_salt) == (0, None, None, "")
        assert (await spy.terms("alice")).tenant == ""  # no header was configured, so none is believed


async def test_the_servers_timeouts_are_the_most_that_one_can_have(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve(queue_timeout=5.0, request_timeout=50.0) as running:
        spy = Spy(running, monkeypatch)
        plain = await spy.terms()
        assert (plain.queue_timeout, plain.timeout) == (5, 50)
        asked = await spy.terms(queue_timeout=1, timeout=100)
        assert (asked.queue_timeout, asked.timeout) == (1, 50)


async def test_tenants_share_no_cached_blocks(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve(tenant_header=HEADER) as running:
        spy = Spy(running, monkeypatch)
        alice, bob = await spy.terms("alice"), await spy.terms("bob")
        assert (alice.tenant, bob.tenant) == ("alice", "bob")
        assert len({alice.cache_salt, bob.cache_salt, (await spy.terms()).cache_salt}) == 3
        assert (await spy.terms(cache_salt=alice.cache_salt)).cache_salt != alice.cache_salt
        status, answer = await running.post("/v1/completions", {"prompt": "x"}, headers={HEADER: "a" * 300})
        assert (status, HEADER in answer["error"]["message"]) == (400, True)
        assert str(MAX_NAME) in answer["error"]["message"]


@pytest.mark.parametrize("name", ["\u00e9", "a\tb"])
async def test_names_that_are_no_ascii_are_refused(serve: Serve, name: str) -> None:
    async with serve(tenant_header=HEADER) as running:
        status, answer = await running.post("/v1/completions", {"prompt": "x"}, headers={HEADER: name})
        assert (status, HEADER in answer["error"]["message"]) == (400, True)


async def test_tenants_may_share_when_the_server_lets_them(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve(tenant_header=HEADER, isolate_tenants=False) as running:
        spy = Spy(running, monkeypatch)
        alice = await spy.terms("alice", cache_salt="s")
        assert (alice.tenant, alice.cache_salt) == ("alice", "s")


@given(st.lists(st.tuples(st.text(max_size=6), st.text(max_size=6)), unique=True))
def test_no_two_pairs_of_tenant_and_salt_are_one_salt(pairs: list[tuple[str, str]]) -> None:
    assert len({salted(*pair) for pair in pairs}) == len(pairs)
