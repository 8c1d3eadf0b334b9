"""The mutation engine: named faults, judged by named checks, for any pytest project."""
