"""Small traces in Mooncake's format, written for tests."""

from __future__ import annotations

import json
import random
from pathlib import Path


def write_trace(
    path: Path, count: int = 120, seconds: float = 60.0, *, prompt: int = 2000, answer: int = 60, seed: int = 1
) -> Path:
    """Requests at random moments, of which one in two goes on with one of eight prompts of 2,048 shared tokens."""
    rng = random.Random(seed)
    lines = []
    for place, sent in enumerate(sorted(rng.uniform(0, 1000 * seconds) for _ in range(count))):
        shared = rng.choice([None, rng.randrange(8)])
        length = rng.randrange(prompt // 2, 3 * prompt // 2)
        ids = [] if shared is None else [100 * (shared + 1) + each for each in range(4)]
        length += 512 * len(ids)
        ids += [10_000 + 100 * place + each for each in range(-(-length // 512) - len(ids))]
        row = {"timestamp": round(sent), "input_length": length, "output_length": rng.randrange(2, 2 * answer)}
        lines.append(json.dumps(row | {"hash_ids": ids}))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
