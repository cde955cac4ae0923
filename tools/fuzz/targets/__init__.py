"""What is fuzzed: one file for each family of inputs. Each has ``open_target()``, a context manager."""
