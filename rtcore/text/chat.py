"""Chat messages to the text of a prompt, through the model's own template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

from ops.errors import InvalidRequest
from rtcore.text.sandbox import ChatSandbox

Message = Mapping[str, Any]

# Names under which a message may carry its reasoning; templates read the first, those of gpt-oss the second.
_REASONING = ("reasoning_content", "thinking", "reasoning")

_USE_COMPLETIONS = (
    "Send a ready prompt to the completions endpoint (/v1/completions, or `generate`), "
    "or export the model again with a chat template."
)


class ChatTemplate:
    """The chat template of a model, or the lack of one."""

    def __init__(self, source: str | None, special_tokens: Mapping[str, str] | None = None) -> None:
        """source: the jinja text. special_tokens: what templates know as bos_token, eos_token and so on."""
        self._special_tokens = dict(special_tokens or {})
        self._sandbox = ChatSandbox()
        self._template: jinja2.Template | None = None
        self._unusable = "The model has no chat template."
        if source is not None:
            try:
                self._template = self._sandbox.compile_template(source)
            except jinja2.TemplateSyntaxError as error:
                self._unusable = f"Its chat template is wrong in line {error.lineno}: {error.message}"
            except RecursionError:
                self._unusable = "Its chat template nests too deeply."

    def require(self) -> jinja2.Template:
        """The template. Raises InvalidRequest where there is none that compiles."""
        if self._template is None:
            raise InvalidRequest(
                "This model cannot chat.", why=self._unusable, remedy=_USE_COMPLETIONS, param="messages"
            )
        return self._template

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt for a conversation; `variables` are more names for the template (enable_thinking...).

        Each message has a role and content, which is text or a list of text parts; parts are joined by line
        breaks. Raises InvalidRequest where there is no template, a message is wrong, or the template refuses.
        """
        template = self.require()
        if not messages:
            raise InvalidRequest("There are no messages.", remedy="Send at least one message.", param="messages")
        names = {
            **self._special_tokens,
            **(variables or {}),
            "messages": [_plain_message(message, f"messages[{number}]") for number, message in enumerate(messages)],
            "tools": list(tools) if tools else None,
            "documents": list(documents) if documents else None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._sandbox.render(template, names)
        # Whatever a template does, from raise_exception to adding None to a string, it is this request's failure.
        except Exception as error:
            raise InvalidRequest(
                "The model's chat template does not take these messages.",
                why=_reason(error),
                remedy="Check the roles, their order and their contents against what the model expects.",
                param="messages",
            ) from error


def _reason(error: Exception) -> str:
    if isinstance(error, jinja2.TemplateError):
        return f"It says: {error.message}"
    if isinstance(error, RecursionError | MemoryError):
        return "It needs too much memory or nests too deeply."
    return f"It failed with {type(error).__name__}: {error}"


def _plain_message(message: Message, where: str) -> dict[str, Any]:
    """The message as templates expect it: no absent keys, text as one string, tool arguments as objects."""
    if not isinstance(message, Mapping):
        raise InvalidRequest(f"{where} is no object.", remedy="Give it a role and content.", param="messages")
    plain = {key: value for key, value in message.items() if value is not None}
    if not isinstance(plain.get("role"), str) or not plain["role"]:
        raise InvalidRequest(
            f"{where} has no role.", remedy="Give it a role: system, user, assistant or tool.", param="messages"
        )
    if "content" in plain:
        plain["content"] = _text(plain["content"], where)
    elif not plain.get("tool_calls"):
        raise InvalidRequest(f"{where} has no content.", remedy="Send text as its content.", param="messages")
    if plain.get("tool_calls"):
        plain["tool_calls"] = _plain_calls(plain["tool_calls"], where)
    reasoning = next((plain[name] for name in _REASONING if name in plain), None)
    if reasoning is not None:
        plain = {"thinking": reasoning, **plain, "reasoning_content": reasoning}
    return plain


def _text(content: Any, where: str) -> str:
    """The content as one text; parts of text are joined by line breaks."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise InvalidRequest(
            f"{where}.content is neither text nor a list of parts.", remedy="Send text.", param="messages"
        )
    texts = []
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind != "text" or not isinstance(part.get("text"), str):
            raise InvalidRequest(
                f"{where}.content[{number}] is a part of type {kind!r}.",
                why="This model reads text only.",
                remedy='Send parts of the form {"type": "text", "text": "..."}.',
                param="messages",
            )
        texts.append(part["text"])
    return "\n".join(texts)


def _plain_calls(calls: Any, where: str) -> list[Any]:
    """Tool calls with their arguments as objects: OpenAI's API spells them as JSON text, templates do not."""
    plain = []
    for call in calls if isinstance(calls, list | tuple) else [calls]:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping):
            raise InvalidRequest(
                f"{where}.tool_calls holds something without a function.",
                remedy="Give each call a function with name and arguments.",
                param="messages",
            )
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments) if arguments.strip() else {}
            except ValueError as error:
                raise InvalidRequest(
                    f"{where}.tool_calls has arguments that are no JSON.", why=str(error), param="messages"
                ) from error
        plain.append({**call, "function": {**function, "arguments": arguments}})
    return plain
