"""Tests of rtcore.decoding."""
