"""Messages cross both ways as they were, and nothing else is taken for one."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.errors import InvalidRequest
from rtcore.config import EngineConfig
from rtcore.decoding.params import Hook, SamplingParams
from rtcore.process import messages
from rtcore.process.messages import (
    Accepted,
    Alive,
    AskStats,
    Cancel,
    Deltas,
    Failed,
    Ready,
    Shutdown,
    Start,
    Stats,
    Submit,
)
from rtcore.request import EngineFailure, EngineRequest, TokenDelta
from tests.rtcore.process import fakes

FAILURE = EngineFailure("Overloaded", "Full.", "Many.", "Wait.", "n", 2.5)
PARAMS = SamplingParams(max_tokens=3, stop=("a", "\u00e9"), stop_token_ids=(1, 2), seed=2**64 - 1, temperature=0.5)


@pytest.mark.parametrize(
    "message",
    [Submit(EngineRequest("r", [1, 2**31], PARAMS, 1.5)), Cancel("r"), AskStats(7), Shutdown()],
    ids=lambda message: type(message).__name__,
)
def test_to_the_engine(message: messages.ToEngine) -> None:
    assert messages.decode_to_engine(messages.encode(message)) == message


@pytest.mark.parametrize(
    "message",
    [
        Ready(10, 20, 0.5),
        Failed(FAILURE, deliberate=True, detail="where"),
        Accepted(["a", "b"]),
        Deltas([TokenDelta("a", [1], "stop", 1), TokenDelta("b", [], "error", failure=FAILURE)]),
        Stats(3, fakes.FakeEngine(EngineConfig()).stats()),
        Alive(),
    ],
    ids=lambda message: type(message).__name__,
)
def test_from_the_engine(message: messages.FromEngine) -> None:
    assert messages.decode_from_engine(messages.encode(message)) == message


def test_the_start() -> None:
    start = Start("/b", EngineConfig(threads=2, precision="int8"), "ipc:///x", 1.0, "m:f")
    assert messages.decode_start(messages.encode(start)) == start


@given(st.binary(max_size=200))
def test_bytes_that_are_no_message(data: bytes) -> None:
    for decode in (messages.decode_to_engine, messages.decode_from_engine, messages.decode_start):
        try:
            decode(data)
        except (msgspec.DecodeError, RecursionError):
            continue
        pytest.fail(f"{data!r} was taken for a message")


def test_one_way_is_not_the_other() -> None:
    with pytest.raises(msgspec.ValidationError):
        messages.decode_to_engine(messages.encode(Ready(1, 2, 3)))
    with pytest.raises(msgspec.ValidationError):
        messages.decode_from_engine(messages.encode(Shutdown()))


def test_parameters_out_of_range_do_not_cross() -> None:
    good = msgspec.to_builtins(Submit(EngineRequest("r", [1], PARAMS)))
    good["request"]["params"]["temperature"] = -1
    with pytest.raises(InvalidRequest, match="temperature"):
        messages.decode_to_engine(msgspec.msgpack.encode(good))


def test_sizes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MAX_MESSAGE_BYTES", 100)
    with pytest.raises(InvalidRequest, match="100 bytes"):
        messages.encode(Cancel("x" * 200))


@pytest.mark.parametrize("option", [10**27, -(2**70)])
def test_what_cannot_cross_is_refused(option: int) -> None:
    params = SamplingParams(logits_processors=(Hook("x", {"a": option}),))
    with pytest.raises(InvalidRequest, match="cannot be passed"):
        messages.encode(Submit(EngineRequest("r", [1], params)))
