"""Configs of shipped profiles with values changed, and what is no JSON at all: ``estimate`` and ``plan``."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from fuzz.commands import SECONDS_PER_CASE, run_command
from fuzz.harness import Target
from fuzz.mutations import deep_json, mutate_bytes, mutate_json
from kvplan.catalog.models import profiles
from quantization_cases.generate import make_case

_ENGINES = ("vllm", "vllm@0.23", "vllm@0.10", "sglang", "kvplan", "llamacpp", "trtllm")
_GPUS = ("h100-sxm", "l4", "gb10", "rtx-3090", "mi300x")


class _Case(NamedTuple):
    """The bytes of a config.json, and the command line but for its path."""

    content: bytes
    words: tuple[str, ...]


@contextmanager
def open_target() -> Iterator[Target[_Case]]:
    """Give the target; its cases are written to one folder, one after the other."""
    texts = [json.dumps(profile["config"]) for profile in profiles()]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"

        def try_case(case: _Case) -> str:
            path.write_bytes(case.content)
            return f"{case.words[0]} {run_command((case.words[0], str(path), *case.words[1:]))}"

        yield Target(lambda rng: _make_case(texts, rng), try_case, seconds_per_case=SECONDS_PER_CASE)


def _make_case(texts: list[str], rng: random.Random) -> _Case:
    return _Case(_content(rng.choice(texts), rng), _words(rng))


def _content(text: str, rng: random.Random) -> bytes:
    kind = rng.random()
    if kind < 0.02:
        return deep_json(rng)
    if kind < 0.04:
        return text.replace(":", ":" + "9" * 5000, 1).encode()
    if kind < 0.12:
        return mutate_bytes(text.encode(), rng)
    config = json.loads(text)
    if kind < 0.5:
        return json.dumps(mutate_json(config, rng, most_changes=rng.choice((1, 2, 4)))).encode()
    if kind < 0.65:
        section = make_case(rng.randrange(10**6))[1]
        return json.dumps({**config, "quantization_config": mutate_json(section, rng, most_changes=3)}).encode()
    for _ in range(rng.randint(1, 3)):
        _resize(config, rng)
    return json.dumps(config).encode()


def _resize(config: Any, rng: random.Random) -> None:
    """Change one size by a factor, or to one as small or odd as sizes can be: most such models are still sized."""
    inner = [value for value in config.values() if isinstance(value, dict)]
    if inner and rng.random() < 0.5:
        return _resize(rng.choice(inner), rng)
    sizes = [key for key, value in config.items() if type(value) in (int, float)]
    if sizes:
        key = rng.choice(sizes)
        config[key] = rng.choice(
            (1, 2, 3, 7, 100, 1024, 4096, 2**20, 2**39, int(config[key] * 2), int(config[key] // 2))
        )
    return None


def _words(rng: random.Random) -> tuple[str, ...]:
    if rng.random() < 0.03:
        return ("plan", "--users", "4", "--ctx-max", "4k", "--gpu", rng.choice(_GPUS), "--json")
    words = ["estimate"]
    if rng.random() < 0.95:  # all GPUs take longer
        words += ["--gpu", rng.choice(_GPUS)]
        words += ["--engine", rng.choice(_ENGINES)] if rng.random() < 0.7 else []
        words += ["--tensor-parallel-size", "2"] if rng.random() < 0.2 else []
    words += ["--ctx", rng.choice(("1", "4k", "1m"))] if rng.random() < 0.6 else []
    words += ["--quantization", rng.choice(("fp8", "awq", "nvfp4"))] if rng.random() < 0.15 else []
    words += rng.choice((["--json"], ["--json"], ["--explain"], []))
    return tuple(words)
