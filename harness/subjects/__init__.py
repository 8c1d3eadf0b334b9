"""Implementations as the harness plays them, loaded by dotted name only."""
