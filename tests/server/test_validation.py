"""Every field of both requests with wrong types and ranges: status 400 in OpenAI's shape, naming the field."""

from __future__ import annotations

from typing import Any

import pytest

from rtcore.decoding.params import MAX_SEQUENCES, MAX_STOP_BYTES, MAX_STOP_STRINGS
from rtcore.request import MAX_PRIORITY, MIN_PRIORITY
from server.protocol.chat import CHAT_NEUTRAL, MESSAGE_NEUTRAL, ChatMessage, ChatRequest
from server.protocol.completions import COMPLETION_NEUTRAL, CompletionRequest
from tests.rtcore.process import fakes
from tests.server.conftest import Running
from tests.server.fake_bundle import NAME
from tests.server.requests import BASE, CHAT, TEXT, assert_error

in_module_loop = pytest.mark.asyncio(loop_scope="module")

WRONG_SHARED: dict[str, list[Any]] = {
    "model": [3, ["echo"], {}],
    "n": ["1", 1.5, 0, -1, MAX_SEQUENCES + 1, True, 10**30, [1]],
    "temperature": ["hot", -0.1, 101, True, [], {}],
    "top_p": ["x", 0, -1, 1.01, False],
    "top_k": ["x", -2, 1.5, True, 10**30],
    "seed": ["x", 1.5, 2**64, -(2**63) - 1, True, 10**40],
    "max_tokens": ["x", 0, -1, 1.5, True, fakes.CONTEXT_LENGTH, 10**30],
    "stop": [3, ["a", 3], {}, "", ["a", ""], ["x"] * (MAX_STOP_STRINGS + 1), "x" * (MAX_STOP_BYTES + 1), [["a"]]],
    "stop_token_ids": [3, "3", ["a"], [1.5], [-1], [fakes.VOCAB_SIZE], [True]],
    "include_stop_str_in_output": ["yes", 1, []],
    "ignore_eos": ["yes", 0, {}],
    "skip_special_tokens": ["yes", 1],
    "response_format": ["json", 3, {}, {"type": "yaml"}, {"type": "json_schema"}, {"type": "text", "x": 1}],
    "structured_outputs": ["x", [], {}, {"regex": ""}, {"regex": 3}, {"x": 1}, {"regex": "a", "grammar": "b"}],
    "guided_json": [3, [1], 1.5],
    "guided_regex": [3, "", ["a"], "a" * 40_000],
    "guided_choice": ["a", [], [""], [3], {}],
    "guided_grammar": [3, "", [], "a" * 70_000],
    "speculation": ["yes", 1, []],
    "min_p": ["x", -0.1, 1.1, True],
    "repetition_penalty": ["x", 0, -1, 1000],
    "presence_penalty": ["x", -2.1, 2.1, []],
    "frequency_penalty": ["x", -2.1, 2.1, {}],
    "logit_bias": [3, [], {"a": 1}, {"3": "x"}, {"3": 101}, {"-1": 1}, {str(fakes.VOCAB_SIZE): 1}],
    "allowed_token_ids": [3, [], ["a"], [-1], [fakes.VOCAB_SIZE]],
    "banned_token_ids": [3, ["a"], [-1], [fakes.VOCAB_SIZE]],
    "bad_words": ["x", [3], [""], ["a" * 2000], ["x"] * 300],
    "min_tokens": ["x", -1, 1.5, 10_000],
    "prompt_logprobs": ["x", -1, 21, True],
    "logits_processors": [3, [3], [{}], [{"name": 3}], ["x"] * 9],
    "stop_rules": [3, [3], [{}], [{"name": 3}], ["x"] * 9],
    "stream": ["yes", 1, []],
    "stream_options": [True, [], {"include_usage": 1}, {"unknown": True}, {"include_usage": True}],
    "priority": ["high", 1.5, MIN_PRIORITY - 1, MAX_PRIORITY + 1, 10**30, True],
    "cache_salt": [3, ["a"], {}],
    "queue_timeout": ["soon", 0, -1, True],
    "timeout": ["soon", 0, -1, []],
    "user": [3, {}],
    "metadata": ["x", {"a": 3}, []],
    "safety_identifier": [3],
    "prompt_cache_key": [3],
}
WRONG: dict[str, dict[str, list[Any]]] = {
    CHAT: {
        **WRONG_SHARED,
        "messages": ["hi", [], {}, [3], [{}], [{"role": "user"}], [{"content": "x"}], None],
        "max_completion_tokens": ["x", 0, -1, 1.5, True, fakes.CONTEXT_LENGTH],
        "add_generation_prompt": ["yes", 1],
        "logprobs": ["x", 1, []],
        "top_logprobs": ["x", 3, -1, 21, True],
        "chat_template_kwargs": [3, [], {"messages": []}, {"bos_token": "x"}],
    },
    TEXT: {
        **WRONG_SHARED,
        "prompt": [3, {}, True, [], [[]], [1, "a"], ["a", [1]], [1.5], [-1], [fakes.VOCAB_SIZE], [[1], 2], None],
        "best_of": ["x", 129, 0, 1.5, True],
        "logprobs": ["x", -1, 21, True],
        "echo": ["yes", 1],
    },
}
NEUTRAL = {CHAT: CHAT_NEUTRAL, TEXT: COMPLETION_NEUTRAL}
NOT_NEUTRAL = ["x-never-neutral", 0.25, [{"type": "function"}], {"type": "json_object"}, {"50": 1}]
KINDS = {CHAT: ChatRequest, TEXT: CompletionRequest}


def cases() -> list[Any]:
    listed = [(path, field, value) for path in WRONG for field, values in WRONG[path].items() for value in values]
    listed += [(path, field, value) for path in NEUTRAL for field in NEUTRAL[path] for value in NOT_NEUTRAL]
    return [pytest.param(*case, id=f"{case[0][4:]}-{case[1]}-{str(case[2])[:24]}") for case in listed]


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_the_table_names_every_field(path: str) -> None:
    assert set(WRONG[path]) | set(NEUTRAL[path]) == set(KINDS[path].__struct_fields__)
    assert not set(WRONG[path]) & set(NEUTRAL[path])


@in_module_loop
@pytest.mark.parametrize(("path", "field", "value"), cases())
async def test_a_wrong_value_names_its_field(running: Running, path: str, field: str, value: Any) -> None:
    base = {**BASE[path]}
    if field == "max_completion_tokens":
        del base["max_tokens"]
    status, body = await running.post(path, {**base, field: value})
    assert_error(status, body, 400, field)
    if field in NEUTRAL[path]:
        assert body["error"]["code"] == "unsupported_parameter"


@in_module_loop
@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_neutral_values_and_nulls_change_nothing(running: Running, path: str) -> None:
    plain = await running.post(path, BASE[path])
    assert plain[0] == 200
    required = {"messages", "prompt"}
    nulls = {field: None for field in KINDS[path].__struct_fields__ if field not in required}
    longest = max(len(values) for values in NEUTRAL[path].values())
    variants = [
        {field: values[number] for field, values in NEUTRAL[path].items() if number < len(values)}
        for number in range(longest)
    ]
    for fields in [{**nulls, **BASE[path]}, *variants]:
        status, body = await running.post(path, {**BASE[path], **fields})
        assert status == 200, body
        assert body["choices"] == plain[1]["choices"]


@in_module_loop
@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 0),
        ("temperature", 2),
        ("top_p", 1),
        ("top_k", -1),
        ("top_k", 0),
        ("seed", -1),
        ("seed", 2**64 - 1),
        ("stop", []),
        ("stop", "zzz"),
        ("n", 1),
        ("stop_token_ids", []),
        ("user", "me"),
        ("metadata", {"a": "b"}),
        ("stream", False),
        ("model", NAME),
    ],
)
async def test_right_values_at_the_edges_are_taken(running: Running, path: str, field: str, value: Any) -> None:
    status, body = await running.post(path, {**BASE[path], field: value})
    assert status == 200, body


@in_module_loop
@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_an_unknown_field_is_refused_with_the_nearest_known(running: Running, path: str) -> None:
    status, body = await running.post(path, {**BASE[path], "max_token": 3})
    assert_error(status, body, 400, "max_token", "unknown_parameter")
    assert "'max_tokens'" in body["error"]["message"]
    status, body = await running.post(path, {**BASE[path], "x" * 10_000: 3})
    assert_error(status, body, 400, None, "unknown_parameter")
    assert len(body["error"]["message"]) < 1000


@in_module_loop
@pytest.mark.parametrize("field", [name for name in ChatMessage.__struct_fields__ if name not in MESSAGE_NEUTRAL])
async def test_wrong_fields_of_a_message(running: Running, field: str) -> None:
    for value in (3, True, {}, [3], [{"type": 3}], [{"type": "text"}], [{"type": "text", "text": 3}], "tool"):
        if isinstance(value, str) and field != "role":
            continue
        message = {"role": "user", "content": "x", field: value}
        status, body = await running.post(CHAT, {"messages": [BASE[CHAT]["messages"][0], message]})
        assert_error(status, body, 400, f"messages[1].{field}")


@in_module_loop
@pytest.mark.parametrize("field", MESSAGE_NEUTRAL)
async def test_message_fields_that_are_not_supported(running: Running, field: str) -> None:
    message = {"role": "assistant", "content": "x"}
    question = BASE[CHAT]["messages"][0]
    for value in [None, *MESSAGE_NEUTRAL[field]]:
        status, body = await running.post(CHAT, {**BASE[CHAT], "messages": [{**message, field: value}, question]})
        assert status == 200, body
    status, body = await running.post(CHAT, {"messages": [{**message, field: [{"id": "x"}]}, question]})
    assert_error(status, body, 400, f"messages[0].{field}", "unsupported_parameter")


@in_module_loop
@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "video_url", "refusal", ""])
async def test_only_text_parts_are_taken(running: Running, kind: str) -> None:
    content = [{"type": "text", "text": "What is this?"}, {"type": kind, kind or "x": {"url": "data:..."}}]
    status, body = await running.post(CHAT, {"messages": [{"role": "user", "content": content}]})
    assert_error(status, body, 400, "messages[0].content[1]", "unsupported_parameter")


@in_module_loop
async def test_text_parts_are_joined_by_lines_and_developer_means_system(running: Running) -> None:
    parts = [{"type": "text", "text": "the rain"}, {"type": "text", "text": "in Spain"}]
    joined = await running.post(CHAT, {**BASE[CHAT], "messages": [{"role": "developer", "content": parts}]})
    plain = await running.post(
        CHAT, {**BASE[CHAT], "messages": [{"role": "system", "content": "the rain\nin Spain"}]}
    )
    assert joined[0] == plain[0] == 200
    assert joined[1]["usage"] == plain[1]["usage"]


@in_module_loop
async def test_max_tokens_by_two_names_must_agree(running: Running) -> None:
    status, body = await running.post(CHAT, {**BASE[CHAT], "max_tokens": 3, "max_completion_tokens": 4})
    assert_error(status, body, 400, "max_tokens")
    status, _ = await running.post(CHAT, {**BASE[CHAT], "max_tokens": 3, "max_completion_tokens": 3})
    assert status == 200


@in_module_loop
async def test_fields_that_do_not_go_together(running: Running) -> None:
    wrong: list[tuple[str, dict[str, Any], str]] = [
        (TEXT, {"n": 3, "best_of": 2}, "best_of"),
        (TEXT, {"best_of": 2, "stream": True}, "best_of"),
        (TEXT, {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        (CHAT, {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        (CHAT, {"top_logprobs": 2, "logprobs": False}, "top_logprobs"),
        (CHAT, {"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        (TEXT, {"min_tokens": 4, "max_tokens": 3}, "min_tokens"),
        (TEXT, {"max_tokens": 0}, "max_tokens"),
    ]
    for path, fields, param in wrong:
        status, body = await running.post(path, {**BASE[path], **fields})
        assert_error(status, body, 400, param)


@in_module_loop
async def test_too_many_answers_in_one_request(running: Running) -> None:
    status, body = await running.post(TEXT, {**BASE[TEXT], "prompt": ["x"] * 10, "n": 128})
    assert_error(status, body, 400, "n")


@in_module_loop
async def test_the_server_still_answers(running: Running) -> None:
    """Runs last: none of the requests above has left anything behind."""
    assert (await running.chat("hello", max_tokens=2))[0] == 200
    assert running.engine.restarts == 0
    assert running.engine.in_flight == 0
