from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from ops.errors import InvalidRequest
from rtcore.text import budget
from rtcore.text.chat import ChatTemplate
from rtcore.text.frontend import TextFrontend
from tests.rtcore.text.vocabularies import byte_level, fake_bundle

TEMPLATES = {path.stem: path.read_text() for path in (Path(__file__).parent / "templates").glob("*.jinja")}
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tells the weather <now> & here",
            "parameters": {"type": "object", "properties": {"city": {"type": "string", "title": "Ström"}}},
        },
    },
    {"type": "function", "function": {"name": "now", "description": "", "parameters": {}}},
]
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Köln"}}}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one": [{"role": "user", "content": "Hi"}],
    "system": [{"role": "system", "content": " Be kind. "}, {"role": "user", "content": "Grüße 🙂\n<b>&amp;</b>"}],
    "turns": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "<think>x</think>\n\nb", "reasoning_content": "\nbecause\n"},
        {"role": "user", "content": "c"},
    ],
    "tool": [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "name": "weather", "tool_call_id": "c1", "content": "12 °C"},
    ],
    "prefilled": [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "a", "reasoning_content": "r"},
    ],
}
OPTIONS: list[dict[str, Any]] = [
    {"add_generation_prompt": True},
    {"add_generation_prompt": False},
    {"add_generation_prompt": True, "tools": TOOLS},
    {"add_generation_prompt": True, "enable_thinking": False, "date_string": "1 May 2030"},
]


def ours(template: ChatTemplate, messages: list[dict[str, Any]], options: dict[str, Any]) -> str | None:
    """The rendered conversation; None where the template refuses it."""
    named = {name: options[name] for name in ("add_generation_prompt", "tools") if name in options}
    variables = {name: value for name, value in options.items() if name not in named}
    try:
        return template.render(messages, variables=variables, **named)
    except InvalidRequest:
        return None


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    transformers = pytest.importorskip("transformers")
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    byte_level().save(str(path))
    return transformers.PreTrainedTokenizerFast(tokenizer_file=str(path), **SPECIAL)


@pytest.mark.export
@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_render_as_in_transformers(theirs: Any, name: str) -> None:
    from jinja2.exceptions import TemplateError

    template = ChatTemplate(TEMPLATES[name], SPECIAL)
    rendered = 0
    for conversation in CONVERSATIONS.values():
        for options in OPTIONS:
            try:
                expected = theirs.apply_chat_template(
                    conversation, chat_template=TEMPLATES[name], tokenize=False, **options
                )
            except (TemplateError, TypeError):
                expected = None
            assert ours(template, conversation, options) == expected
            rendered += expected is not None
    assert rendered >= 12


@pytest.mark.export
def test_the_real_template_gives_the_ids_of_transformers(smollm2_bundle: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from rtcore.bundle import Bundle

    theirs = transformers.AutoTokenizer.from_pretrained(smollm2_bundle / "tokenizer")
    frontend = TextFrontend(Bundle.open(smollm2_bundle, check="sizes"))
    for messages in CONVERSATIONS.values():
        if any("content" not in message for message in messages):
            continue
        for add in (True, False):
            expected = theirs.apply_chat_template(messages, add_generation_prompt=add)["input_ids"]
            assert frontend.render_chat(messages, add_generation_prompt=add) == expected


def test_parts_of_text_are_joined_and_others_refused() -> None:
    template = ChatTemplate("{{ messages[0].content }}")
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert template.render([{"role": "user", "content": parts}]) == "one\ntwo"
    image = [*parts, {"type": "image_url", "image_url": {"url": "x"}}]
    with pytest.raises(InvalidRequest, match=r"messages\[0\]\.content\[2\].*image_url"):
        template.render([{"role": "user", "content": image}])


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([], "no messages"),
        (["hi"], r"messages\[0\]"),
        ([{"content": "x"}], "no role"),
        ([{"role": "", "content": "x"}], "no role"),
        ([{"role": "user"}], "no content"),
        ([{"role": "user", "content": None}], "no content"),
        ([{"role": "user", "content": 3}], "neither text"),
        ([{"role": "user", "content": [{"type": "text"}]}], "content"),
        ([{"role": "user", "content": ["x"]}], "content"),
        ([{"role": "assistant", "tool_calls": [{}]}], "function"),
        ([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}], "no JSON"),
    ],
)
def test_wrong_messages_are_refused(messages: list[Any], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said) as caught:
        ChatTemplate("{{ messages }}").render(messages)
    assert caught.value.param == "messages"


def test_arguments_of_tool_calls_become_objects() -> None:
    template = ChatTemplate("{{ messages[0].tool_calls[0].function.arguments.city }}")
    call = {"function": {"name": "weather", "arguments": '{"city": "Köln"}'}}
    assert template.render([{"role": "assistant", "content": None, "tool_calls": [call]}]) == "Köln"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (None, "no chat template"),
        ("line\n{% while true %}{% endwhile %}", "wrong in line 2"),
        ("{{ " + "(" * 5000, "nests too deeply"),
    ],
)
def test_without_a_template_the_error_names_the_completions(source: str | None, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said) as caught:
        ChatTemplate(source).render([{"role": "user", "content": "x"}])
    assert "/v1/completions" in caught.value.remedy


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{{ missing.name }}", "undefined"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ namespace(_x=1) }}", "underscore"),
        ("{% include 'other' %}", "loader"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "nests too deeply"),
    ],
)
def test_what_a_template_does_wrong_is_the_requests_failure(source: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        ChatTemplate(source).render([{"role": "user", "content": "x"}])


def test_a_failed_rendering_does_not_spoil_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "MAX_STEPS", 250_000)
    template = ChatTemplate(
        "{% for n in range(messages[0].content|int) %}{% for m in range(99999) %}{% endfor %}{% endfor %}ok"
    )
    with pytest.raises(InvalidRequest, match="steps"):
        template.render([{"role": "user", "content": "99999"}])
    assert template.render([{"role": "user", "content": "2"}]) == "ok"


def test_the_date_is_todays() -> None:
    before = time.strftime("%Y-%m-%d")
    said = ChatTemplate("{{ strftime_now('%Y-%m-%d') }}").render([{"role": "user", "content": "x"}])
    assert before <= said <= time.strftime("%Y-%m-%d")


def test_special_tokens_come_from_the_checkpoints_own_configuration(tmp_path: Path) -> None:
    bundle = fake_bundle(tmp_path, byte_level(), template="{{ bos_token }}|{{ eos_token }}|{{ unk_token }}")
    messages = [{"role": "user", "content": "x"}]
    assert TextFrontend(bundle).chat.render(messages) == "<s>|</s>|"
    config = '{"bos_token": {"content": "<b>"}, "unk_token": "<u>", "add_bos_token": true}'
    (tmp_path / "tokenizer" / "tokenizer_config.json").write_text(config)
    assert TextFrontend(bundle).chat.render(messages) == "<b>|</s>|<u>"
