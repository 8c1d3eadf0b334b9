"""Row identity for anybody's per-sequence cache: a batch against each sequence alone, and against a fresh start."""
