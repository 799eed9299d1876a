"""Structured output: grammars that say which token may come next."""
