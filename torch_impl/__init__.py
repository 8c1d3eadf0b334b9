"""Production: batched, per-row compressed-KV state in torch."""
