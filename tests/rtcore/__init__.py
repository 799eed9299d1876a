"""Tests of rtcore."""
