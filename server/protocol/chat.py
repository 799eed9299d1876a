"""`/v1/chat/completions`: the request, checked, and the shapes of its answers.

Source: OpenAI's API reference, "Chat"; the extra fields are vLLM's.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ops.errors import InvalidRequest, UnsupportedParameter
from server.protocol.common import Usage
from server.protocol.decoding import decode_body
from server.protocol.logprobs import ChatLogprobs, PromptLogprobs
from server.protocol.sampling import NEUTRAL, SharedFields

CHAT_NEUTRAL: dict[str, tuple[Any, ...]] = {
    **NEUTRAL,
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
    "documents": ([],),
    "chat_template": (),
    "add_special_tokens": (False,),
    "continue_final_message": (False,),
    "echo": (False,),
}

MESSAGE_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "tool_calls": ([],),
    "tool_call_id": (),
    "function_call": (),
    "audio": (),
    "refusal": (),
    "reasoning": (),
    "reasoning_content": (),
    "annotations": ([],),
}

RESERVED_TEMPLATE_NAMES = frozenset(
    ("messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token", "pad_token", "unk_token")
)


class ContentPart(msgspec.Struct, frozen=True):
    """A part of a message; parts of other types than text are refused by name."""

    type: str
    text: str | None = None


class ChatMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: Any = None
    tool_call_id: Any = None
    function_call: Any = None
    audio: Any = None
    refusal: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    annotations: Any = None


class ChatRequest(SharedFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    tools: Any = None
    tool_choice: Any = None
    parallel_tool_calls: Any = None
    functions: Any = None
    function_call: Any = None
    modalities: Any = None
    audio: Any = None
    prediction: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None
    web_search_options: Any = None
    documents: Any = None
    chat_template: Any = None
    add_special_tokens: Any = None
    continue_final_message: Any = None
    echo: Any = None

    @classmethod
    def parse(cls, body: bytes) -> ChatRequest:
        """Decode and check a body; raises InvalidRequest naming the field."""
        request = decode_body(body, _decoder, cls)
        request.refuse_unsupported(CHAT_NEUTRAL)
        request.check_stream()
        if request.top_logprobs is not None and not request.logprobs:
            raise InvalidRequest("top_logprobs goes with logprobs: true only.", param="top_logprobs")
        both = {request.max_tokens, request.max_completion_tokens} - {None}
        if len(both) > 1:
            raise InvalidRequest(
                "max_tokens and max_completion_tokens differ.", remedy="Send one of them.", param="max_tokens"
            )
        if not request.messages:
            raise InvalidRequest("messages is empty.", remedy="Send at least one message.", param="messages")
        for number, message in enumerate(request.messages):
            _check_message(message, f"messages[{number}]")
        reserved = RESERVED_TEMPLATE_NAMES & set(request.chat_template_kwargs or ())
        if reserved:
            raise InvalidRequest(
                f"chat_template_kwargs may not set {sorted(reserved)[0]!r}.", param="chat_template_kwargs"
            )
        return request

    @property
    def answer_limit(self) -> int | None:
        """max_tokens by either of its names; None means what the context has room for."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def param_names(self) -> dict[str, str]:
        """What fields of an engine's request are called in this one, for errors that name them."""
        limit = "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"
        return {"prompt": "messages", "max_tokens": limit, "logprobs": "top_logprobs"}

    def sampling_fields(self) -> dict[str, Any]:
        return super().sampling_fields() | {"logprobs": (self.top_logprobs or 0) if self.logprobs else None}

    def template_messages(self) -> list[dict[str, Any]]:
        """The messages as chat templates take them: text contents, `developer` as `system`."""
        messages = []
        for message in self.messages:
            role = "system" if message.role == "developer" else message.role
            shown: dict[str, Any] = {"role": role, "content": _text(message)}
            if message.name is not None:
                shown["name"] = message.name
            messages.append(shown)
        return messages

    def template_arguments(self) -> dict[str, Any]:
        """What the template is called with beside the messages."""
        return {
            "add_generation_prompt": self.add_generation_prompt is not False,
            "variables": self.chat_template_kwargs or {},
        }


_decoder = msgspec.json.Decoder(ChatRequest)


def _check_message(message: ChatMessage, place: str) -> None:
    if message.role in ("tool", "function"):
        raise UnsupportedParameter(
            f"{place}: messages of role {message.role!r} are not supported by this server.", param=f"{place}.role"
        )
    for name, harmless in MESSAGE_NEUTRAL.items():
        value = getattr(message, name)
        if value is not None and value not in harmless:
            raise UnsupportedParameter(
                f"{place}.{name} is not supported by this server.", remedy="Leave it out.", param=f"{place}.{name}"
            )
    if message.content is None:
        raise InvalidRequest(f"{place}.content is missing.", param=f"{place}.content")
    if isinstance(message.content, str):
        return
    for number, part in enumerate(message.content):
        where = f"{place}.content[{number}]"
        if part.type != "text":
            raise UnsupportedParameter(
                f"{where}: parts of type {part.type[:40]!r} are not supported.",
                why="This server takes text only.",
                param=f"{where}.type",
            )
        if part.text is None:
            raise InvalidRequest(f"{where}.text is missing.", param=f"{where}.text")


def _text(message: ChatMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    return "\n".join(part.text or "" for part in message.content or ())


class AnswerMessage(msgspec.Struct, frozen=True, tag_field="role", tag="assistant"):
    content: str
    refusal: None = None


class ChatChoice(msgspec.Struct, frozen=True):
    index: int
    message: AnswerMessage
    finish_reason: str | None
    stop_reason: int | str | None = None
    logprobs: ChatLogprobs | None = None


class ChatCompletion(msgspec.Struct, frozen=True, tag_field="object", tag="chat.completion"):
    id: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET


class MessageDelta(msgspec.Struct, frozen=True):
    role: str | msgspec.UnsetType = msgspec.UNSET
    content: str | msgspec.UnsetType = msgspec.UNSET


class ChunkChoice(msgspec.Struct, frozen=True):
    index: int
    delta: MessageDelta
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: ChatLogprobs | None = None


class ChatChunk(msgspec.Struct, frozen=True, tag_field="object", tag="chat.completion.chunk"):
    """One event of a stream; `usage` is null in all but the last when it was asked for, else absent."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChunkChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
