"""Proves that every row of a batch is itself, and that the proof can fail."""
