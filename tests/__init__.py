"""Tests; the folders mirror the tree of the packages. Helpers are imported as ``tests.<folder>.<module>``."""
