"""TokenStream under any order of feeding, reading, cancelling and failing."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.errors import EngineDied
from rtcore.process.stream import TokenStream
from rtcore.request import TokenDelta

IDS = ("a", "b", "c")
ACTIONS = st.lists(
    st.tuples(st.sampled_from(("feed", "feed", "feed", "read", "finish", "cancel")), st.sampled_from(IDS)),
    max_size=60,
)


@given(ACTIONS)
def test_nothing_is_lost_doubled_or_reordered(actions: list[tuple[str, str]]) -> None:
    asyncio.run(_check(actions))


async def _check(actions: list[tuple[str, str]]) -> None:
    cancelled: list[str] = []
    stream = TokenStream(IDS, cancelled.extend)
    sent: dict[str, list[int]] = {name: [] for name in IDS}
    read: dict[str, list[int]] = {name: [] for name in IDS}
    ended: set[str] = set()
    dropped: set[str] = set()
    seen_end: set[str] = set()

    async def take() -> None:
        delta = await anext(stream)
        assert delta.id not in dropped | seen_end
        read[delta.id] += delta.token_ids
        if delta.finish_reason is not None:
            assert read[delta.id] == sent[delta.id]
            seen_end.add(delta.id)

    for number, (action, name) in enumerate(actions):
        if action == "read":
            if stream._pending:
                await take()
        elif action == "cancel":
            if name not in seen_end:
                dropped.add(name)
            stream.cancel(name)
        elif name not in ended:
            reason = "length" if action == "finish" else None
            if reason is not None:
                ended.add(name)
            sent[name].append(number)
            stream.feed(TokenDelta(name, [number], reason))
        assert len(stream._pending) <= len(IDS)
    for name in set(IDS) - ended:
        sent[name].append(-1)
        stream.feed(TokenDelta(name, [-1], "stop"))
    async with asyncio.timeout(5):
        while seen_end | dropped != set(IDS):
            await take()
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    for name in set(IDS) - dropped:
        assert read[name] == sent[name]
    assert set(cancelled) <= dropped
    await stream.aclose()
    assert set(cancelled) <= dropped


async def test_acceptance_comes_with_the_first_tokens_too() -> None:
    stream = TokenStream(["a", "b"], lambda ids: None)
    waiting = asyncio.create_task(stream.accepted())
    stream.accept("a")
    await asyncio.sleep(0)
    assert not waiting.done()
    stream.feed(TokenDelta("b", [1]))
    await asyncio.wait_for(waiting, 1)


async def test_a_failure_comes_after_what_was_there() -> None:
    cancelled: list[str] = []
    stream = TokenStream(["a", "b"], cancelled.extend)
    stream.feed(TokenDelta("a", [1], "length"))
    stream.fail(EngineDied("It died."))
    with pytest.raises(EngineDied):
        await stream.accepted()
    assert (await anext(stream)).token_ids == [1]
    with pytest.raises(EngineDied):
        await anext(stream)
    await stream.aclose()
    assert cancelled == ["b"]


async def test_closing_wakes_who_waits() -> None:
    stream = TokenStream(["a"], lambda ids: None)
    waiting = asyncio.create_task(anext(stream))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    await stream.aclose()
    with pytest.raises(StopAsyncIteration):
        await asyncio.wait_for(waiting, 1)
