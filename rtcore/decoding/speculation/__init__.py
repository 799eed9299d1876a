"""Speculative decoding: guesses at the next tokens, which one step of the model then verifies together."""
