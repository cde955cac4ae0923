"""What is fuzzed: one file for each family of inputs. It has ``open_target()``, a context manager that gives a Target."""
