"""The default sweep on GPUs of every kind: blocks and outcomes are those predicted, whoever else uses the GPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from memory_gpu import GIB, KIB, MIB, Card, take_card

from kvplan.machine.opened_device import OpenedGpu
from kvplan.runs.columns import Row
from kvplan.runs.trials import Trial
from kvplan.sweeps.options import SweepOptions
from kvplan.sweeps.plan import SweepPlan, make_plan
from kvplan.sweeps.progress import SilentProgress
from kvplan.sweeps.session import run_new_sweep
from kvplan.sweeps.worker.opened import opened_gpu


def growing(first: int, each: int, most: int) -> Callable[[int], int]:
    """What others hold, more at each look."""
    return lambda looks: min(first + looks * each, most)


CARDS = {
    "bare context": Card("NVIDIA H100 80GB HBM3", 81_079 * MIB, 310 * MIB),
    "A100, as measured": Card("NVIDIA A100-SXM4-80GB", 81_050 * MIB, 788 * MIB, capability=(8, 0)),
    "large context": Card("NVIDIA H200", 143_156 * MIB, 1229 * MIB, library_bytes=420 * MIB),
    "desktop": Card("NVIDIA GeForce RTX 4090", 24_080 * MIB, 460 * MIB, others=lambda _: 614 * MIB, capability=(8, 9)),
    "a neighbour that grows": Card(
        "NVIDIA L4", 22_478 * MIB, 330 * MIB, others=growing(300 * MIB, 7 * MIB + 4096, 5 * GIB), capability=(8, 9)
    ),
    "a neighbour that comes": Card(
        "NVIDIA A100-PCIE-40GB", 40_326 * MIB, 420 * MIB, others=lambda looks: 0 if looks < 40 else 3 * GIB
    ),
    "a neighbour that goes": Card(
        "NVIDIA A100-PCIE-40GB", 40_326 * MIB, 420 * MIB, others=lambda looks: 9 * GIB if looks < 40 else 0
    ),
    "a small slice": Card("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 9_984 * MIB, 300 * MIB),
    "a large slice": Card("NVIDIA A100-SXM4-40GB MIG 3g.20gb", 19_968 * MIB, 520 * MIB, capability=(8, 0)),
    "unified memory": Card(
        "NVIDIA GB10", 122_570 * MIB, 640 * MIB, others=growing(11 * GIB, 3 * MIB, 14 * GIB), capability=(12, 1)
    ),
    "the other one of a mixed box": Card("Tesla V100-SXM2-32GB", 32_501 * MIB, 305 * MIB, capability=(7, 0)),
    "not in the catalog": Card(
        "NVIDIA Graphics Device",
        15_102 * MIB,
        900 * MIB,
        graph_bytes=lambda tokens: 64 * KIB * tokens,
        capability=(7, 5),
    ),
}
STEADY = [name for name in CARDS if not name.startswith("a neighbour") and name != "unified memory"]
IN_CI = {"large context", "a neighbour that grows"}


def sweep(tmp_path: Path, card: Card, monkeypatch: pytest.MonkeyPatch) -> tuple[SweepPlan, list[Row]]:
    """The plan as it was announced before the first trial, and the rows."""
    take_card(monkeypatch, card)
    answered = opened_gpu()["gpu"]
    assert answered is not None
    options = SweepOptions(model="gpt2", device="auto", rerun=False, load_format="dummy", num_prompts=32)
    plan = make_plan(options, ask=lambda: OpenedGpu(**answered))
    assert (plan.device.name, plan.device.memory_bytes, plan.device.uuid) == (card.name, card.total_bytes, "ab-cd")
    announced: list[SweepPlan] = []
    outcome = run_new_sweep(plan, tmp_path / "run", SilentProgress(), command="test", announce=announced.append)
    return announced[0], outcome.rows


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in IN_CI else pytest.mark.exhaustive) for name in CARDS]
)
def test_blocks_and_outcomes_are_those_predicted(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In each row; and of a GPU whose other users hold still, in the plan before the first trial as well."""
    plan, rows = sweep(tmp_path, CARDS[name], monkeypatch)
    statuses = [row["status"] for row in rows]
    assert len(rows) == 32
    assert statuses == [row["predicted_status"] for row in rows]
    carved = [row for row in rows if row["num_blocks_total"] is not None]
    assert [row["num_blocks_total"] for row in carved] == [row["num_blocks_predicted"] for row in carved]
    assert {"oom_weights", "oom_kv_init"} <= set(statuses) and len(carved) >= 12
    if name in STEADY:
        assert statuses == [prediction.status for prediction in plan.predictions()]
        assert {"ok", "rejected_ctx"} <= set(statuses)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert "close enough to stand in for vLLM's" in summary["stand_in"]["sentence"]
    stored = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert [Trial.from_json(record) for record in stored["trials"]] == list(plan.trials)
