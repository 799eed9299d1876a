"""Tests of rtcore.kvcache."""
