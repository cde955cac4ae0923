"""Damaged configs: every one is read, or refused with our own error; no size is ever zero or negative.

Ten thousand in `make exhaustive`, of which CI takes a fifth.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tiny_configs import own_config, with_awq

from kvplan.catalog.reader import read_config
from kvplan.errors import KvplanError
from kvplan.estimate.cache_entries import CacheSettings
from kvplan.estimate.kv_cache import size_sequence
from kvplan.estimate.weights import size_weights

MODELS = Path(__file__).parents[2] / "profiles" / "models"
_SHIPPED = (
    *("gpt2", "llama-3.1-8b", "mistral-7b-v0.1", "mixtral-8x7b", "gemma-2-2b", "gemma-3-4b", "gemma-3n-e4b"),
    *("gemma-4-26b-a4b", "gpt-oss-20b", "llama-4-scout", "deepseek-v2-lite", "deepseek-v3.2", "glm-5.3"),
    *("deepseek-v4-flash", "qwen3.5-27b", "qwen3-next-80b-a3b", "jamba-v0.1", "nemotron-3-nano-30b"),
    *("kimi-linear-48b-a3b", "lfm2-1.2b", "mamba-2.8b", "mamba-codestral-7b"),
    *("llama-3.3-nemotron-super-49b", "mimo-v2-flash", "minimax-text-01", "t5-base", "whisper-large-v3"),
    *("llama-3.2-11b-vision", "llava-1.5-7b", "mistral-small-3.1-24b", "qwen2-vl-2b", "falcon-40b", "bloom"),
    *("dbrx", "chatglm3-6b", "olmo-3-7b", "command-r7b", "exaone-4.0-32b", "opt-125m"),
    *("llama-3.3-70b-instruct-fp8-dynamic", "kimi-k2.5-nvfp4", "gpt-neo-1.3b"),
)
CONFIGS: dict[str, dict[str, Any]] = {
    name: json.loads((MODELS / f"{name}.json").read_text())["config"] for name in _SHIPPED
}

_NUMBERS = (0, -1, 1, 2, 3, 7, 64, 10**9, 10**30, -(10**30), 0.5, 1e308, float("inf"), float("nan"))
_TEXTS = ("", "4096", "banana", "auto", "full_attention", "sliding_attention", "float8", "re:(", "\x00")
_KEYS = ("hidden_size", "x", "rope_type", "num_bits", "weights")
_MISSING = object()
NUM_CONFIGS, EXHAUSTIVE_TIMES = 2_000, 5


def _scalar(random: Random) -> Any:
    kinds = (None, random.random() < 0.5, random.randint(-(10**12), 10**12), random.choice(_NUMBERS))
    return random.choice((*kinds, random.choice(_TEXTS)))


def _value(random: Random) -> Any:
    """Nothing at all, a scalar, a list or an object of scalars."""
    scalars = [_scalar(random) for _ in range(random.randint(0, 4))]
    return random.choice(
        (_MISSING, _scalar(random), scalars, dict(zip(random.sample(_KEYS, 3), scalars, strict=False)))
    )


def _places(config: dict[str, Any], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every key of the config and of the objects inside it."""
    found = []
    for key, value in config.items():
        found.append((*path, key))
        if isinstance(value, dict) and len(path) < 3:
            found.extend(_places(value, (*path, key)))
    return found


# Formats and keys of models that ship no profile.
CONFIGS["a model in AWQ"] = with_awq(CONFIGS["llama-3.1-8b"])
CONFIGS["a hybrid mixture in Granite's keys"] = own_config("granite mixture")
NAMES = tuple(CONFIGS)

PLACES = {name: _places(config) for name, config in CONFIGS.items()}


def _changed(config: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """``config`` with another value at ``path``; only the objects on the way are copied."""
    key, *rest = path
    copied = dict(config)
    if rest:
        inner = copied.get(key)
        copied[key] = _changed(inner, tuple(rest), value) if isinstance(inner, dict) else inner
    elif value is _MISSING:
        copied.pop(key, None)
    else:
        copied[key] = value
    return copied


def mutated_config(random: Random) -> dict[str, Any]:
    """A shipped config with one to three keys changed or gone."""
    name = random.choice(NAMES)
    config = CONFIGS[name]
    for _ in range(random.randint(1, 3)):
        config = _changed(config, random.choice(PLACES[name]), _value(random))
    return config


@pytest.mark.slow
def test_a_damaged_config_is_sized_or_refused(exhaustive: bool) -> None:
    outcomes: Counter[bool] = Counter()
    number = NUM_CONFIGS * (EXHAUSTIVE_TIMES if exhaustive else 1)
    for seed in range(number):
        config = mutated_config(Random(seed))
        try:
            outcomes[is_sized(config)] += 1
        except Exception as error:
            raise AssertionError(f"seed {seed}: {config}") from error
    assert min(outcomes[True], outcomes[False]) > number / 10, outcomes


def is_sized(config: dict[str, Any]) -> bool:
    """Whether it was, with sizes that can be; False where it was refused by an error of our own."""
    try:
        spec = read_config(config, model_id="damaged")
        cache = size_sequence(spec, 1000, CacheSettings(encoder_tokens=100))
        weights = size_weights(spec, "bfloat16")
    except KvplanError as error:
        assert error.message
        return False
    assert spec.num_layers > 0 and spec.hidden_size > 0 and spec.vocab_size > 0
    assert 0 < spec.num_active_parameters <= spec.num_parameters
    assert weights.total_bytes > 0
    assert cache.logical_bytes >= 0 and cache.bytes_per_token >= 0
    for component in cache.components:
        assert component.logical_bytes(1000) > 0
    return True
