"""Three launches of one attention kernel in a common shape, for a tool that looks at the last: one_launch.py decode."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kernel", choices=("decode", "prefill", "prefill_wgmma"))
    parser.add_argument("--dry-run", action="store_true", help="a tiny shape through the CPU emulation")
    options = parser.parse_args()
    sys.path[:0] = [str(ROOT), str(ROOT / "engine")]
    from kvplan_engine.measuring.attention import DRY_HEADS, LLAMA, attend_all_layers, make_pool
    from kvplan_engine.measuring.support import Bench

    bench = Bench(options.dry_run)
    lengths, new_tokens = ([8192] * 16, 1) if options.kernel == "decode" else ([4096], 4096)
    if options.dry_run:
        lengths, new_tokens = [20], 1 if options.kernel == "decode" else 20
    pool = make_pool(bench, DRY_HEADS if options.dry_run else LLAMA, lengths, new_tokens, layers=3)
    backend = bench.wgmma_backend if options.kernel == "prefill_wgmma" else bench.backend
    if backend is None:
        raise SystemExit("error: no products of warp groups on this GPU; hint: compute capability 9.0 alone has them")
    attend_all_layers(backend, pool)
    bench.synchronize()


if __name__ == "__main__":
    main()
