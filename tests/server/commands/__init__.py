"""Tests of server.commands."""
