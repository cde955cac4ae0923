"""One file per kind of input. Each has ``open_target()``, a context manager that gives a ``harness.Target``."""
