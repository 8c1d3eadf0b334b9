"""Why a mutant survives a test: measured in forked runs of the original and of the mutant."""
