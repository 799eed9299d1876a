"""What compiling and following one grammar may take."""

from __future__ import annotations

from typing import Any

CHECK_SECONDS = 3.0
"""Processor time for compiling a grammar and for its first tokens, rounded up to whole seconds of the process."""
WAIT_FACTOR = 10
"""By how much longer the engine waits for that on a machine that has other things to do."""
CHECK_BYTES = 1 << 30
"""Address space of the process that checks grammars, beside what it has once its vocabulary is loaded."""
MASK_SECONDS = 3.0
"""How long a step waits for one sequence's mask after the model has run."""

_LIMITS: dict[str, Any] = {
    "max_items_in_row": 4000,
    "initial_lexer_fuel": 400_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 200_000,
    "verbose_errors": False,
}


def parser_limits() -> Any:
    """The limits of llguidance's parser: of its size, and of the work for one token."""
    from llguidance import LLParserLimits

    return LLParserLimits(**_LIMITS)
