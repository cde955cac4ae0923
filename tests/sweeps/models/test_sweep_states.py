"""A sweep of a model with states runs its layers, and every row is as predicted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvplan.sweeps.options import SweepOptions
from kvplan.sweeps.plan import make_plan
from kvplan.sweeps.progress import SilentProgress
from kvplan.sweeps.session import run_new_sweep

_QWEN3_5: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 20,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
}


@pytest.mark.slow
def test_outcome_and_blocks_are_right_in_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "config.json").write_text(json.dumps(_QWEN3_5), encoding="utf-8")
    axes = {
        "gpu_memory_utilization": "0.001,0.9",
        "block_size": "3,16",
        "max_num_seqs": "4",
        "max_model_len": "64",
        "dtype": "float32",
    }
    options: dict[str, Any] = {
        "num_prompts": 6,
        "input_len": "20..40",
        "output_len": "4",
        "rerun": False,
        "trial_timeout": 600.0,
    }
    plan = make_plan(
        SweepOptions(
            model=str(tmp_path / "config.json"),
            axes=axes,
            device="cpu",
            device_memory="512MiB",
            **options,
        )
    )
    rows = run_new_sweep(plan, tmp_path / "run", SilentProgress(), command="test").rows
    assert sorted(row["status"] for row in rows) == ["ok", "ok", "oom_kv_init", "oom_kv_init"]
    for row in rows:
        assert row["status"] == row["predicted_status"]
        if row["status"] == "ok":
            assert row["block_bytes"] == row["block_bytes_predicted"]
            assert row["num_blocks_total"] == row["num_blocks_predicted"]
            assert row["completed"] == 6
