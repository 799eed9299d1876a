"""Bodies that are no JSON, or JSON of the wrong shape: status 400 that says where, whatever the bytes."""

from __future__ import annotations

import itertools
import json

import pytest

from ops.errors import InvalidRequest
from rtcore.decoding.params import SamplingParams
from server.protocol.chat import ChatRequest
from server.protocol.completions import CompletionRequest
from tests.server.conftest import Running
from tests.server.requests import BASE, CHAT, TEXT, assert_error

in_module_loop = pytest.mark.asyncio(loop_scope="module")


@in_module_loop
@pytest.mark.parametrize(
    ("body", "place"),
    [
        (b"", "line 1, column 1"),
        (b"{", "line 1, column 2"),
        (b'{"prompt": "x",}', "line 1, column 16"),
        (b'{"prompt":\n  x}', "line 2, column 3"),
        (b'{"prompt": "x"} {', "line 1, column 18"),
        (b'{"prompt": NaN}', "line 1, column 12"),
        (b'{"prompt": "\xff"}', None),
        (b"\xef\xbb\xbf{}", "line 1, column 1"),
        (b'{"prompt": ["x"', "line 1, column 16"),
        (b"'x'", "line 1, column 1"),
    ],
)
async def test_malformed_json_says_where(running: Running, body: bytes, place: str | None) -> None:
    async with running.http.post(TEXT, data=body, headers={"Content-Type": "application/json"}) as response:
        answer = await response.json()
    assert_error(response.status, answer, 400, None)
    assert "JSON" in answer["error"]["message"]
    if place is not None:
        assert place in answer["error"]["message"]


@in_module_loop
@pytest.mark.parametrize("body", [b"[]", b'"x"', b"3", b"null", b"true"])
async def test_json_that_is_no_object(running: Running, body: bytes) -> None:
    for path in (CHAT, TEXT):
        async with running.http.post(path, data=body, headers={"Content-Type": "application/json"}) as response:
            assert_error(response.status, await response.json(), 400, None)


@in_module_loop
@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
@pytest.mark.parametrize("field", ["logit_bias", "tools", "chat_template_kwargs", "messages", "stop", "unknown"])
async def test_deep_nesting_is_refused(running: Running, field: str, opening: bytes) -> None:
    body = b'{"messages": [], "%s": ' % field.encode() + opening * 200_000
    async with running.http.post(CHAT, data=body, headers={"Content-Type": "application/json"}) as response:
        assert_error(response.status, await response.json(), 400, None)


@in_module_loop
async def test_the_server_still_answers(running: Running) -> None:
    """Runs last: none of the requests above has left anything behind."""
    assert (await running.chat("hello", max_tokens=2))[0] == 200
    assert running.engine.restarts == 0
    assert running.engine.in_flight == 0


def test_every_single_byte_change_is_an_answer_or_a_bad_request() -> None:
    """Parsing never raises anything but InvalidRequest."""
    whole = json.dumps({**BASE[CHAT], "stop": ["a"], "logit_bias": {"1": 2}, "n": 2}).encode()
    for position, byte in itertools.product(range(len(whole)), (0, ord('"'), ord("{"), ord("9"), 0xFF)):
        changed = whole[:position] + bytes([byte]) + whole[position + 1 :]
        try:
            ChatRequest.parse(changed)
        except InvalidRequest as error:
            assert error.what


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (rb'{"prompt": "a\ud800"}', "byte 13): \\ud800 is half of a surrogate pair"),
        (rb'{"prompt": "\ud83d\ude00 \udc00"}', "byte 25): \\udc00 is half"),
        (rb'{"prompt": "\\\ud83dx"}', "byte 14): \\ud83d is half"),
        (rb'{"prompt": "a', "truncated"),
        (b'{"prompt": "a", "logit_bias": {"x": 1}}', "A key of logit_bias: Expected an integer"),
        (
            b'{"prompt": "a", "response_format": {"type": "yaml"}}',
            "Send one of 'json_object', 'json_schema', 'text'.",
        ),
        (b'{"prompt": "a", "bad_words": ["b", ""]}', "bad_words is ''; it must be texts of"),
    ],
)
def test_messages_say_what_is_wrong_and_what_would_do(body: bytes, said: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(
            **{name: value for name, value in CompletionRequest.parse(body).sampling_fields().items() if value}
        )
    assert said in str(caught.value)


def test_values_are_listed_within_lists() -> None:
    with pytest.raises(InvalidRequest, match=r"messages\[1\]\.role.*'assistant'.*'system'.*'user'"):
        ChatRequest.parse(b'{"messages": [{"role": "user", "content": "a"}, {"role": "me", "content": "a"}]}')
