"""The compressor as the specification words it: NumPy, float64, one sequence, no cleverness."""
