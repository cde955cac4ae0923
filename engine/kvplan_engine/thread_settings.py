"""Environment settings of torch's libraries. Import this before torch is loaded, or they have no effect."""

from __future__ import annotations

import os

# How long an idle thread spins before it sleeps. With the runtime's default, some milliseconds, the threads of a step
# wait for each other as soon as another process needs a core. gpt2 on two cores under a load of 8: 29 tokens/s with a
# short spin, 8 with the default; with the cores to itself 227 against 197.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

# How many compiled matrix products oneDNN caches. Its default of 1,024 grows to hundreds of MiB that no budget counts,
# and a process at its memory limit then dies inside the compiler instead of raising an error.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")
