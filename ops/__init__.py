"""Operators of the domain ``ai.ortolan``: schema, reference semantics and kernels."""
