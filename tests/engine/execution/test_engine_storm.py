"""Every request that is added ends, with all of its samples, whatever runs beside it: see ``engine_storm``.

In CI some hundred requests; 10,000 as PYTHONPATH=engine:tests/engine/cases python THIS_FILE 10000
"""

from __future__ import annotations

import copy
import sys
import tempfile
import time
from pathlib import Path

import torch
from engine_storm import run_storm
from small_models import Checkpoint


def test_every_request_of_a_storm_ends_with_all_of_its_samples(checkpoints: dict[str, Checkpoint]) -> None:
    storm = run_storm(checkpoints["llama"], 180, per_round=20)
    assert storm.num_lost == 0
    assert storm.num_leaked_blocks == 0
    assert storm.wrong == []
    assert storm.num_aborted > 50
    assert min(storm.num_preemptions, storm.num_swaps, storm.num_hits, storm.num_steps_ahead) > 10, storm


def test_a_storm_with_a_draft_model(checkpoints: dict[str, Checkpoint], tmp_path: Path) -> None:
    """The same with drafts, some of them right: aborted between steps, cut by budgets, preempted, forked."""
    torch.manual_seed(1)
    drafter = copy.deepcopy(checkpoints["llama"].model)
    with torch.no_grad():
        for parameter in drafter.parameters():
            if parameter.ndim > 1:
                parameter += 0.03 * parameter.std() * torch.randn_like(parameter)
    drafter.save_pretrained(tmp_path)
    drafting: dict[str, object] = {"model": str(tmp_path), "num_speculative_tokens": 3}
    storm = run_storm(checkpoints["llama"], 100, per_round=20, seed=3, speculative_config=drafting)
    assert storm.num_lost == storm.num_leaked_blocks == storm.num_steps_ahead == 0
    assert storm.wrong == []
    assert 100 < storm.num_accepted < storm.num_drafts - 100
    assert min(storm.num_aborted, storm.num_preemptions, storm.num_swaps, storm.num_hits) > 10, storm


if __name__ == "__main__":
    torch.set_num_threads(1)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        print(run_storm(Checkpoint("llama", Path(folder)), int(sys.argv[1])))
    print(f"{time.monotonic() - began:.0f} s")
