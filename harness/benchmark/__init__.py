"""Measurements of production, as ratios between things that ran in one process, in turn."""
