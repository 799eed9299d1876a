"""Checkpoints as they come: Hugging Face folders and GGUF files behind one interface."""
