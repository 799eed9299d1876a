"""The prompts of golden.json: short texts of many kinds, or random tokens where there is no tokenizer."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ops.errors import CheckpointError

TEXTS = {
    "question": "What is the capital of France?",
    "story": "Once upon a time, in a village at the foot of the mountains, there lived a clockmaker who",
    "code": "def fibonacci(n: int) -> int:\n    if n < 2:\n        return n\n    return",
    "numbers": "1, 2, 4, 8, 16, 32, 64,",
    "german": "Der schnellste Weg vom Bahnhof zum Rathaus führt über die Brücke und dann",
    "chinese": "人工智能是计算机科学的一个分支,它",
    "emoji": "🎉 Happy birthday! 🎂 May your year be full of",
    "json": '{"name": "ortolan", "kind": "bird", "length_cm": 16, "colours": ["olive",',
}
LONGEST = 64
RANDOM_LENGTHS = (1, 7, 24, 48)


def golden_prompts(tokenizer: Path, vocabulary: int, context_length: int) -> dict[str, list[int]]:
    """Token ids of each prompt by name, each at most as long as the context allows.

    tokenizer: a folder that holds tokenizer.json; without it the prompts are random. Raises CheckpointError when
    the tokenizer gives an id that the model does not have.
    """
    longest = min(LONGEST, context_length)
    path = tokenizer / "tokenizer.json"
    if not path.exists():
        random = np.random.default_rng(0)
        return {
            f"random_{length}": random.integers(0, vocabulary, min(length, longest)).tolist()
            for length in RANDOM_LENGTHS
        }
    from tokenizers import Tokenizer

    encoder = Tokenizer.from_file(str(path))
    prompts = {name: encoder.encode(text).ids[:longest] for name, text in TEXTS.items()}
    largest = max(token for tokens in prompts.values() for token in tokens)
    if largest >= vocabulary:
        raise CheckpointError(
            f"The tokenizer gives the id {largest}, but the model has {vocabulary} tokens.",
            remedy="Use the tokenizer that belongs to this model.",
            param="tokenizer.json",
        )
    return {name: tokens for name, tokens in prompts.items() if tokens}
