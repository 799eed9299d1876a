"""What is particular to a model family: one file a family, used by export alone."""
