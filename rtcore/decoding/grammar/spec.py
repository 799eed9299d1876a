"""StructuredOutputs: what a request may ask of the form of its answer."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

import msgspec

from ops.errors import InvalidRequest

MAX_BYTES = {"json": 256 * 1024, "regex": 32 * 1024, "choice": 256 * 1024, "grammar": 64 * 1024}
"""Of the text of each kind; larger ones take more time and memory than a request should get."""
MAX_CHOICES = 3900

Kind = Literal["json", "regex", "choice", "grammar", "json_object"]


class StructuredOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """The form that an answer must have: exactly one of the following, with the names that users of vLLM know.

    json: a JSON schema, as an object or as its text. regex: a regular expression that the whole answer matches,
    in the syntax of Rust's regex crate. choice: the answer is one of these strings. grammar: a Lark grammar with
    a rule `start`. json_object: any JSON object. field: the request's field that this came from, for errors.
    """

    json: str | dict[str, Any] | bool | None = None
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    field: str = "structured_outputs"

    def __post_init__(self) -> None:
        """Raises InvalidRequest naming the field that is wrong."""
        if self.json is not None and not isinstance(self.json, str):
            msgspec.structs.force_setattr(self, "json", self._text_of(self.json))
        if self.choice is not None:
            if isinstance(self.choice, str):
                raise self.refusal("choice is a string; it must be a list of strings.", kind="choice")
            msgspec.structs.force_setattr(self, "choice", tuple(dict.fromkeys(self.choice)))
        self.check()

    @property
    def kind(self) -> Kind:
        for name in ("json", "regex", "choice", "grammar"):
            if getattr(self, name) is not None:
                return name
        return "json_object"

    @property
    def source(self) -> str:
        """The text that a grammar is made of; empty for json_object, a JSON list for choices."""
        value = getattr(self, self.kind)
        if isinstance(value, tuple):
            return json.dumps(value, ensure_ascii=False)
        return value if isinstance(value, str) else ""

    @property
    def key(self) -> bytes:
        """A digest that equal specifications share."""
        return hashlib.sha256(f"{self.kind}\0{self.source}".encode()).digest()

    def check(self) -> None:
        """Raise InvalidRequest unless exactly one form is asked for, as text of a size that is allowed."""
        given = [name for name in ("json", "regex", "choice", "grammar") if getattr(self, name) is not None] + [
            "json_object"
        ] * bool(self.json_object)
        if len(given) != 1:
            what = f"It has {' and '.join(given)}" if given else "It has none of them"
            raise InvalidRequest(
                f"{self.field} must have exactly one of json, regex, choice, grammar and json_object.",
                why=f"{what}.",
                param=self.field,
            )
        if self.choice is not None:
            if not 1 <= len(self.choice) <= MAX_CHOICES:
                raise self.refusal(f"There are {len(self.choice)} choices; 1 to {MAX_CHOICES} are allowed.")
            if not all(isinstance(choice, str) and choice for choice in self.choice):
                raise self.refusal("A choice is empty or no string.")
        elif self.kind in ("regex", "grammar") and not self.source:
            raise self.refusal(f"The {self.kind} is empty.")
        try:
            size = len(self.source.encode())
        except UnicodeEncodeError as error:
            raise self.refusal("The text has a lone surrogate, which is no valid Unicode.") from error
        most = MAX_BYTES.get(self.kind, 0)
        if size > most:
            raise self.refusal(f"It takes {size:,} bytes; {most:,} are allowed.")

    def refusal(self, what: str, why: str = "", kind: str | None = None) -> InvalidRequest:
        """The error for a specification that is not accepted."""
        return InvalidRequest(
            what, why=why, remedy="See docs/structured-output.md for what is accepted.", param=self._param(kind)
        )

    def _param(self, kind: str | None) -> str:
        """The path of the field: `structured_outputs.json`; fields that can be of one kind only name themselves."""
        return f"{self.field}.{kind or self.kind}" if self.field == "structured_outputs" else self.field

    def _text_of(self, schema: dict[str, Any] | bool) -> str:
        try:
            return msgspec.json.encode(schema).decode()
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise self.refusal("The schema is no JSON.", why=f"{error}.", kind="json") from error
