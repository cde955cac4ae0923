"""An engine's end of the talk with compare.py: JSON lines on stdin and stdout. Imported by each engine's Python."""

from __future__ import annotations

import json
import os
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from workload import Scenario, scenario


@dataclass(frozen=True, slots=True)
class Order:
    """What to load.

    shares_prefixes: whether the engine shall look for cached prefixes. rounds_activations: whether kvplan rounds to 8
    bits what weights in few bits are multiplied with, as its peers always do.
    """

    model: str
    directory: str
    dtype: str
    num_threads: int
    shares_prefixes: bool
    rounds_activations: bool = False


Loaded = Callable[[Scenario], list[list[int]]]


def serve(version: str, load: Callable[[Order], Loaded]) -> None:
    """Load what the first line orders, then run each scenario that is named until stdin ends.

    load returns a function from a scenario to its samples' tokens, in the requests' order. Whatever the engine prints
    goes to stderr.
    """
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def answer(document: dict[str, Any]) -> None:
        answers.write(json.dumps(document) + "\n")
        answers.flush()

    order = Order(**json.loads(sys.stdin.readline()))
    started = time.perf_counter()
    run = load(order)
    answer({"version": version, "load_seconds": time.perf_counter() - started})
    for line in sys.stdin:
        asked = scenario(json.loads(line)["scenario"], order.model)
        started = time.perf_counter()
        samples = run(asked)
        seconds = time.perf_counter() - started
        wanted = [request.output_tokens for request in asked.requests for _ in range(asked.num_samples)]
        lengths = [len(sample) for sample in samples]
        tokens = np.asarray([token for sample in samples for token in sample], dtype=np.int32)
        answer({"seconds": seconds, "lengths_ok": lengths == wanted, "crc": f"{zlib.crc32(tokens.tobytes()):08x}"})
