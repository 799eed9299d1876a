"""Tests of rtcore.executor."""
