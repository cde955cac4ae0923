"""KV outside the pool: swapped sequences in host memory, evicted blocks in host memory and on disk."""
