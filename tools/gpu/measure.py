"""`python -m kvplan_engine.measuring.script` on the sources of this checkout, which need not be installed."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "engine")]
    from kvplan_engine.measuring.script import main

    sys.exit(main())
