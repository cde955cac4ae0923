"""Settings of torch's libraries, made when this module is imported: before torch loads them, or they have no effect."""

from __future__ import annotations

import os

# How long an idle thread spins before it sleeps. The runtime's default, some milliseconds, makes the threads of a step
# wait for each other as soon as another process wants a core: gpt2 on two cores with a load of 8 beside it made 29
# tokens/s with a short spin and 8 without, and 227 against 197 where it had the cores to itself.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

# How many compiled products oneDNN keeps. Its default of 1,024 grows to hundreds of MiB, which no budget counts, and a
# process at its memory limit then dies inside the compiler instead of getting an error.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")
