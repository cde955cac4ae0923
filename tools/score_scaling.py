"""How throughput grows with GPUs, beside published results. Run: python tools/score_scaling.py [--write]

Prints docs/scaling.md: published series that differ in the number of GPUs alone, plans for 1 to 64 GPUs on paper, and
the all-reduce model beside nccl-tests. --write keeps it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from kvplan.catalog.devices.kernel_tables import read_kernel_tables  # noqa: E402
from kvplan.catalog.devices.measured import MeasuredProfiles  # noqa: E402
from scaling.page import page  # noqa: E402

PAGE = ROOT / "docs" / "scaling.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="keep it as docs/scaling.md")
    text = page(MeasuredProfiles(read_kernel_tables()))
    if parser.parse_args().write:
        PAGE.write_text(text, encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
