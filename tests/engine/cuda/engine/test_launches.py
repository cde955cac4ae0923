"""What a step queues on a GPU, and how often the host waits for it: counted, so that it does not creep up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from counted_gpu import CountedGpu, Launches
from fake_gpu import take_gpu
from test_graph_prediction import CONFIGS, OTHERS

from kvplan_engine import Engine, EngineConfig, SamplingParams

CONFIG = CONFIGS["llama"]
GREEDY = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)


class Counter:
    """An engine of ``num_layers`` layers on a counted GPU, and steps of it."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        folder: Path,
        num_layers: int,
        *,
        eager: bool,
        model: dict[str, object] = CONFIG,
        **settings: Any,
    ) -> None:
        self._gpu = CountedGpu()
        take_gpu(monkeypatch, self._gpu)
        path = folder / "config.json"
        path.write_text(json.dumps(model | {"num_hidden_layers": num_layers}), encoding="utf-8")
        usual = {"max_num_batched_tokens": 32, "max_num_seqs": 8, "max_model_len": 64, "dtype": "float32"}
        usual |= {"enable_prefix_caching": False}
        self._engine = Engine(
            EngineConfig(model=str(path), load_format="dummy", enforce_eager=eager, **(usual | settings))
        )
        self._number = 0

    def add(self, params: SamplingParams, *lengths: int) -> None:
        rng = np.random.default_rng(3)
        for length in lengths:
            self._number += 1
            self._engine.add_request(f"request {self._number}", rng.integers(1, 384, length).tolist(), params)

    def step(self, times: int = 1) -> Launches:
        """The last of so many steps."""
        for _ in range(times):
            found = self._gpu.count(self._engine)
        return found


def decode_step(counter: Counter, params: SamplingParams) -> Launches:
    """Of three sequences, which the ladder pads to four, in the middle of their answers."""
    counter.add(params, 4, 5, 6)
    return counter.step(4)


def mixed_step(counter: Counter, params: SamplingParams) -> Launches:
    """Of three sequences that decode and two prompts, one of which goes on in the next step."""
    decode_step(counter, params)
    counter.add(params, 20, 40)
    return counter.step()


STEPS = {"decode": decode_step, "mixed": mixed_step}
EXPECTED = {
    # kernels, products, torch's operations, uploads, downloads, graphs, waits
    ("decode", "graphs"): (Launches(1, 0, 0, 0, 1, 1, 1), Launches()),
    ("decode", "eager"): (Launches(19, 13, 1, 0, 1, 0, 1), Launches(kernels=5, products=4)),
    ("mixed", "graphs"): (Launches(1, 0, 0, 0, 1, 1, 1), Launches()),
    ("mixed", "eager"): (Launches(22, 13, 4, 0, 1, 0, 1), Launches(kernels=6, products=4)),
}
"""Of a greedy step with three layers, and what of it each layer takes."""


@pytest.mark.parametrize(("kind", "mode"), EXPECTED)
def test_what_a_greedy_step_queues(kind: str, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """csrc/cuda/README.md has the table; `pytest -s` prints the lines."""
    found = {n: STEPS[kind](Counter(monkeypatch, tmp_path, n, eager=mode == "eager"), GREEDY) for n in (2, 3)}
    print(f"{kind} step, {mode}: {found[3]}, {found[3].queued} in all; of a layer {found[3] - found[2]}")
    assert (found[3], found[3] - found[2]) == EXPECTED[kind, mode]


def test_a_mixed_step_with_states_and_experts_is_one_graph_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two layers with a delta rule and one with attention, all with experts."""
    sizes = {"model": OTHERS["qwen3_next"], "max_num_batched_tokens": 8, "max_num_seqs": 4}
    found = {
        is_eager: mixed_step(Counter(monkeypatch, tmp_path, 3, eager=is_eager, **sizes), GREEDY)
        for is_eager in (False, True)
    }
    assert found == {False: EXPECTED["mixed", "graphs"][0], True: Launches(43, 10, 6, 0, 1, 0, 1)}


def test_a_decode_step_with_skinny_products_is_made_of_our_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight for each layer instead of nine, none of them torch's."""
    skinny = {"linear_backend": "cuda_skinny", "dtype": "float16"}
    found = {n: decode_step(Counter(monkeypatch, tmp_path, n, eager=True, **skinny), GREEDY) for n in (2, 3)}
    assert found[3] == Launches(kernels=29, operations=1, downloads=1, waits=1)
    assert found[3] - found[2] == Launches(kernels=8)


RANDOM = {
    "top-p and seed": {"temperature": 0.8, "top_p": 0.9, "seed": 3},
    "penalties": {"temperature": 0.8, "presence_penalty": 0.5, "repetition_penalty": 1.1},
}


@pytest.mark.parametrize("way", RANDOM)
def test_a_random_step_queues_what_a_greedy_one_does(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for sequences that come: how their tokens are chosen is sent, and what their penalties begin with."""
    counter, params = Counter(monkeypatch, tmp_path, 2, eager=False), SamplingParams(max_tokens=30, **RANDOM[way])
    greedy = {kind: found - of_layer for (kind, mode), (found, of_layer) in EXPECTED.items() if mode == "graphs"}
    assert decode_step(counter, params) == greedy["decode"]
    counter.add(params, 20, 40)  # the first of which is complete in one step
    extra = Launches(operations=2, uploads=4) if way == "penalties" else Launches(uploads=1)
    assert counter.step() - extra == greedy["mixed"]


def test_log_probabilities_are_waited_for_with_the_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counter = Counter(monkeypatch, tmp_path, 2, eager=False)
    found = decode_step(counter, SamplingParams(temperature=0.8, logprobs=2, max_tokens=30))
    assert (found.waits, found.graphs, found.downloads) == (1, 1, 4), "tokens; their values, the likeliest, and theirs"
