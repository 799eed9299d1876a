"""Ahead of time: a checkpoint becomes a sealed bundle. Nothing here is imported when serving."""
