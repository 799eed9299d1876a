"""From a request's words to a matcher of llguidance: used alike by the engine and by the process that checks."""

from __future__ import annotations

import json
from typing import Any

from rtcore.decoding.grammar.limits import parser_limits

WHITESPACE = r"[ ]|\n[ ]{0,32}"
"""Where JSON allows whitespace: one space, or one new line and its indentation. Without a bound, a model that is
unsure of the next token can go on with whitespace for ever."""
MAX_ERROR = 300


class GrammarError(Exception):
    """A specification is no grammar, or one that is too large; the text says which."""


def new_matcher(tokenizer: Any, kind: str, source: str) -> Any:
    """An LLMatcher at the beginning of the grammar; kind and source are those of StructuredOutputs.

    tokenizer: an LLTokenizer. Raises GrammarError. Lets other threads run.
    """
    from llguidance import LLMatcher

    try:
        matcher = LLMatcher(tokenizer, _grammar(kind, source), log_level=0, limits=parser_limits())
    except ValueError as error:
        raise GrammarError(shorten(str(error))) from error
    if matcher.is_error():
        raise GrammarError(shorten(matcher.get_error()))
    return matcher


def _grammar(kind: str, source: str) -> str:
    from llguidance import LLMatcher

    grammar: str
    match kind:
        case "json" | "json_object":
            # What a schema says and this does not enforce is refused, whatever the schema itself says of that.
            options: Any = {"whitespace_pattern": WHITESPACE, "lenient": False}
            schema = '{"type":"object"}' if kind == "json_object" else source
            if schema.strip() == "true":
                schema = "{}"
            grammar = LLMatcher.grammar_from_json_schema(schema, overrides=options)
        case "regex":
            grammar = LLMatcher.grammar_from_regex(source)
        case "choice":
            words = " | ".join(json.dumps(choice) for choice in json.loads(source))
            grammar = LLMatcher.grammar_from_lark(f"start: {words}")
        case _:
            grammar = LLMatcher.grammar_from_lark(source)
    return grammar


def shorten(text: str) -> str:
    """The first line that says something, without the marks of llguidance's short errors."""
    lines = [line.strip() for line in text.replace("<non-verbose/>", "").splitlines() if line.strip()]
    line = lines[0] if lines else "It is not accepted"
    if line.startswith("oneOf constraints"):  # llguidance names an option of its own, which no request can set
        return "The branches of a oneOf are not known to exclude one another; anyOf takes them"
    if line.endswith(":"):  # the reason comes last, after a drawing of the place
        line += "".join(f" {other.removeprefix('error: ')}" for other in lines[-1:] if other.startswith("error: "))
    return line if len(line) <= MAX_ERROR else f"{line[:MAX_ERROR]}..."
