"""The fields that ask for the form of an answer, and the StructuredOutputs that they come to.

Sources: OpenAI's API reference, "Chat completions", response_format; vLLM's "Structured outputs" for
structured_outputs and the older guided fields.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ops.errors import InvalidRequest
from rtcore.decoding.grammar.spec import StructuredOutputs

Schema = dict[str, Any] | bool


class JsonSchemaFormat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """OpenAI's wrapper of a schema. strict makes no difference here: a schema is always followed to the letter, and
    one that cannot be is refused."""

    name: str
    schema: Schema | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputsField(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """vLLM's; null means absent."""

    json: str | Schema | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class StructureFields(msgspec.Struct, frozen=True, kw_only=True):
    """The fields, of which a request has one at most."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputsField | None = None
    guided_json: str | Schema | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None

    def structure(self) -> StructuredOutputs | None:
        """What they ask for. Raises InvalidRequest when they ask for several things or something that is none."""
        asked = self._asked()
        if len(asked) > 1:
            raise InvalidRequest(
                f"{asked[0].field} and {asked[1].field} both ask for the form of the answer.",
                remedy="Send one of them.",
                param=asked[1].field,
            )
        return asked[0] if asked else None

    def _asked(self) -> list[StructuredOutputs]:
        asked = []
        if self.response_format is not None and self.response_format.type != "text":
            asked.append(_of_response_format(self.response_format))
        if self.structured_outputs is not None:
            field = self.structured_outputs
            choice = None if field.choice is None else tuple(field.choice)
            asked.append(
                StructuredOutputs(
                    json=field.json,
                    regex=field.regex,
                    choice=choice,
                    grammar=field.grammar,
                    json_object=field.json_object,
                )
            )
        if self.guided_json is not None:
            asked.append(StructuredOutputs(json=self.guided_json, field="guided_json"))
        if self.guided_regex is not None:
            asked.append(StructuredOutputs(regex=self.guided_regex, field="guided_regex"))
        if self.guided_choice is not None:
            asked.append(StructuredOutputs(choice=tuple(self.guided_choice), field="guided_choice"))
        if self.guided_grammar is not None:
            asked.append(StructuredOutputs(grammar=self.guided_grammar, field="guided_grammar"))
        return asked


def _of_response_format(wanted: ResponseFormat) -> StructuredOutputs:
    if wanted.type == "json_object":
        return StructuredOutputs(json_object=True, field="response_format")
    if wanted.json_schema is None:
        raise InvalidRequest(
            "response_format.json_schema is missing.",
            why='The type is "json_schema".',
            param="response_format.json_schema",
        )
    if wanted.json_schema.schema is None:
        return StructuredOutputs(json_object=True, field="response_format.json_schema")
    return StructuredOutputs(json=wanted.json_schema.schema, field="response_format.json_schema.schema")
