"""Adapters that show results on screen and in files; they decide nothing."""
