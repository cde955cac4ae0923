"""The same requests through the engine directly and through a sweep's worker: the same tokens, and shared prefixes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sweep_helpers import tiny_plan

from kvplan.runs.directory import read_trials
from kvplan.runs.storage.requests import read_requests
from kvplan.runs.trials import Trial, TrialSettings
from kvplan.sweeps.progress import SilentProgress
from kvplan.sweeps.session import run_new_sweep
from kvplan.sweeps.worker.engine_host import EngineHost
from kvplan.sweeps.worker.protocol import TrialOrder
from kvplan.sweeps.worker.trial import run_trial
from kvplan.workload.requests import prompt_token_ids
from kvplan_engine import LLM, Engine, SamplingParams

SETTINGS = TrialSettings(0.9, 4, 4, 256, 512)


class RecordingEngine:
    """The worker's engine, and every token that its steps gave out."""

    def __init__(self, engine: Engine) -> None:
        self.tokens: dict[str, list[int]] = {}
        self._engine = engine

    def step(self) -> Any:
        outputs = self._engine.step()
        for output in outputs:
            self.tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
        return outputs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def order_of(directory: Path, **options: Any) -> TrialOrder:
    plan = tiny_plan(directory, num_prompts=10, output_len="3..9", seed=5, **options)
    return TrialOrder(
        trial_id=Trial(1, SETTINGS).trial_id,
        engine={"model": str(directory / "tiny-model" / "config.json"), "device": "cpu", "device_memory": 1 << 30,
                "load_format": "dummy", "seed": 5},
        settings=SETTINGS.as_json(),
        requests=plan.predictor.requests,
        max_concurrency=3,
        seed=5,
        vocab_size=128,
    )  # fmt: skip


def test_same_requests_same_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker's trial (closed loop, warm-up before it) against one call of LLM.generate."""
    order = order_of(tmp_path)
    host = EngineHost(is_limited=True)  # this process keeps its memory limit
    recorded: list[RecordingEngine] = []

    def recording(*arguments: Any, **options: Any) -> RecordingEngine:
        recorded.append(RecordingEngine(Engine(*arguments, **options)))
        return recorded[-1]

    monkeypatch.setattr("kvplan.sweeps.worker.engine_host.Engine", recording)
    result = run_trial(host, order, lambda *_, **__: None)
    assert result.row["status"] == "ok"

    llm = LLM(**order.engine, **order.settings)
    prompts = [{"prompt_token_ids": prompt_token_ids(5, request, 128)} for request in order.requests]
    params = [
        SamplingParams(temperature=0.0, max_tokens=request.num_output_tokens, ignore_eos=True)
        for request in order.requests
    ]
    direct = llm.generate(prompts, params)
    for request, output in zip(order.requests, direct, strict=True):
        assert recorded[0].tokens[f"request-{request.index}"] == list(output.outputs[0].token_ids)
    assert result.row["total_output_tokens"] == sum(request.num_output_tokens for request in order.requests)
    served = result.requests
    assert [line["output_tokens"] for line in served] == [request.num_output_tokens for request in order.requests]
    assert result.row["p95_ttft_ms"] == pytest.approx(
        np.percentile([1000 * (line["ttft_s"] or 0) for line in served], 95), abs=0.001
    )
    assert all(line["trial_id"] == order.trial_id and line["error"] is None for line in served)


def test_blocks_that_a_trial_writes_to_are_touched_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request's own where prefixes are kept, else those of the four longest, which take the freed ones again."""
    touched: list[int] = []
    monkeypatch.setattr(Engine, "touch_blocks", lambda _, num_blocks: touched.append(num_blocks))
    order = order_of(tmp_path)
    for caches in (True, False):
        order.engine["enable_prefix_caching"] = caches
        EngineHost(is_limited=True).make_ready(order, lambda *_, **__: None)
    each = sorted(-(-(one.num_prompt_tokens + one.num_output_tokens) // 4) for one in order.requests)
    assert touched == [sum(each), sum(each[-4:])]


@pytest.mark.slow
def test_shared_prefixes_are_found_in_the_cache_and_the_row_and_the_series_say_so(tmp_path: Path) -> None:
    """Eight prompts of 64 shared tokens each, all but the first two of each prefix's kind find them."""
    options = {"num_prefixes": 2, "prefix_len": "64", "num_prompts": 8, "max_concurrency": 2}
    plan = tiny_plan(tmp_path, {"max_num_seqs": "2", "block_size": "16"}, **options)
    run_new_sweep(plan, tmp_path / "run", SilentProgress(), command="test")
    (record,) = read_trials(tmp_path / "run" / "trials.jsonl").records
    row, series = record["row"], record["series"]
    assert row["status"] == "ok"
    assert row["num_cached_tokens"] == 6 * 64
    (requests,) = read_requests(tmp_path / "run").values()
    assert sum(line["cached_tokens"] or 0 for line in requests) == row["num_cached_tokens"]
    assert row["prefix_hit_rate"] == pytest.approx(6 * 64 / row["total_input_tokens"])
    assert series["cached_tokens"] == sorted(series["cached_tokens"])
    assert series["cached_tokens"][-1] == row["num_cached_tokens"]
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["workload"]["spec"]["num_prefixes"] == 2
