"""Tests of rtcore.scheduler."""
