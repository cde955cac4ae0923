"""What every engine is asked to do. Needs numpy only: it is imported by each engine's own Python.

`batch` is 64 requests at once, prompts of 32 to 256 and answers of 16 to 128 tokens (uniform, numpy's generator,
seed 0), greedy and with nothing shared; the other scenarios ask for what paging makes possible.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

VOCAB_SIZES = {
    "gpt2-124m": 50257,
    "llama-135m": 49152,
    "llama-1b": 128256,
    "qwen3-moe-0.5b": 32000,
    "gemma-3-270m": 262144,
    "qwen3.5-0.8b": 248320,
}
MAX_MODEL_LEN = 1024
MAX_NUM_SEQS = 64
MAX_NUM_BATCHED_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt, and the number of tokens that each of its samples must have."""

    prompt_token_ids: list[int]
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Scenario:
    """Requests that are handed over at once. num_samples > 1 are drawn at temperature 1, one sample is greedy."""

    name: str
    requests: list[Request]
    num_samples: int = 1
    shares_prefixes: bool = False

    @property
    def output_tokens(self) -> int:
        return self.num_samples * sum(request.output_tokens for request in self.requests)


def _tokens(generator: np.random.Generator, vocab_size: int, count: int) -> list[int]:
    return [int(token) for token in generator.integers(10, vocab_size - 10, count)]


def _batch(vocab_size: int) -> Scenario:
    generator = np.random.default_rng(0)
    prompts, outputs = generator.integers(32, 257, 64), generator.integers(16, 129, 64)
    return Scenario(
        "batch",
        [
            Request(_tokens(generator, vocab_size, int(prompt)), int(output))
            for prompt, output in zip(prompts, outputs, strict=True)
        ],
    )


def _single(vocab_size: int) -> Scenario:
    return Scenario("single", [Request(_tokens(np.random.default_rng(1), vocab_size, 32), 512)])


def _short(vocab_size: int) -> Scenario:
    """As `single`, for models whose 512 tokens would take a minute."""
    return Scenario("short", [Request(_tokens(np.random.default_rng(1), vocab_size, 32), 96)])


def _sixteen(vocab_size: int) -> Scenario:
    generator = np.random.default_rng(4)
    return Scenario("sixteen", [Request(_tokens(generator, vocab_size, 32), 96) for _ in range(16)])


def _prefix(vocab_size: int) -> Scenario:
    """64 requests behind 4 prompts of 512 tokens: each run draws the same tokens, so later runs find them cached."""
    generator = np.random.default_rng(2)
    prefixes = [_tokens(generator, vocab_size, 512) for _ in range(4)]
    outputs = generator.integers(16, 65, 64)
    requests = [
        Request(prefixes[index % 4] + _tokens(generator, vocab_size, 32), int(output))
        for index, output in enumerate(outputs)
    ]
    return Scenario("prefix", requests, shares_prefixes=True)


def _samples(vocab_size: int) -> Scenario:
    generator = np.random.default_rng(3)
    return Scenario("samples", [Request(_tokens(generator, vocab_size, 256), 64) for _ in range(8)], num_samples=8)


def sampling_settings(request: Request, num_samples: int) -> dict[str, float | bool]:
    """Arguments of SamplingParams, which kvplan and vLLM name alike."""
    return {
        "n": num_samples,
        "temperature": 0.0 if num_samples == 1 else 1.0,
        "max_tokens": request.output_tokens,
        "min_tokens": request.output_tokens,
        "ignore_eos": True,
    }


_SCENARIOS = {
    "batch": _batch,
    "single": _single,
    "short": _short,
    "sixteen": _sixteen,
    "prefix": _prefix,
    "samples": _samples,
}
SCENARIO_NAMES = tuple(_SCENARIOS)


def scenario(name: str, model: str) -> Scenario:
    """The scenario for a model's vocabulary; the same in every process."""
    return _SCENARIOS[name](VOCAB_SIZES[model])
