"""Measures kvplan's own engine on this machine's CPU: settings to calibrate with, and loads that are to be predicted.

    python tools/measure_loads.py DIR --seed 1
    python tools/score_load_model.py DIR...

Writes DIR, a sweep's directory. Its trials are the settings of a calibration, with all requests at once, and loads:
arrivals at random (Poisson) and closed loops, one of each twice. They run in an order drawn by the seed, so that a
machine whose speed changes from minute to minute is no faster for the ones than for the others; how far apart the loads
that ran twice are says how much it changes. The seed also draws lengths and arrivals. Takes about two minutes.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from kvplan.runs.trials import SWEEP_LOAD, Load, Trial  # noqa: E402
from kvplan.sweeps.options import SweepOptions  # noqa: E402
from kvplan.sweeps.plan import SweepPlan, make_plan  # noqa: E402
from kvplan.sweeps.progress import PlainProgress  # noqa: E402
from kvplan.sweeps.schedules.schedule import FixedSchedule  # noqa: E402
from kvplan.sweeps.session import run_new_sweep  # noqa: E402

SEATS: Final = (1, 2, 3, 5, 9, 12)
BUDGETS: Final = (64, 256)
LOAD_SEATS: Final = 32
LOADS: Final = (
    *(Load(request_rate=rate) for rate in (3.0, 5.0, 7.0)),
    *(Load(max_concurrency=number) for number in (4, 7, 14)),
)
REPEATED: Final = (Load(request_rate=7.0), Load(max_concurrency=7))


def options(model: str, seed: int) -> SweepOptions:
    """Prompts of 32 to 256 tokens, answers of 8 to 48; a pool that no load fills."""
    return SweepOptions(
        model=model,
        axes={
            "gpu_memory_utilization": "0.9",
            "max_num_seqs": ",".join(map(str, SEATS)),
            "max_num_batched_tokens": ",".join(map(str, BUDGETS)),
            "max_model_len": "320",
            "block_size": "16",
            "dtype": "bfloat16",
        },
        device="cpu",
        device_memory="2GiB",
        num_prompts=44,
        input_len="32..256",
        output_len="8..48",
        seed=seed,
        load_format="dummy",
        rerun=False,
    )


def in_turn(plan: SweepPlan, seed: int) -> SweepPlan:
    """``plan``'s settings, and the loads, in an order drawn by ``seed``."""
    settings = replace(plan.trials[0].settings, max_num_seqs=LOAD_SEATS, max_num_batched_tokens=max(BUDGETS))
    loaded = [(load, 1) for load in LOADS] + [(load, 2) for load in REPEATED]
    trials = [*plan.trials, *(Trial(0, settings, run, ("load",), load) for load, run in loaded)]
    random.Random(seed).shuffle(trials)
    numbered = tuple(replace(trial, number=number) for number, trial in enumerate(trials, start=1))
    return replace(plan, trials=numbered, schedule=FixedSchedule(numbered))


def is_load(trial: Trial) -> bool:
    """Whether a calibration does not see it."""
    return trial.load != SWEEP_LOAD


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    plan = in_turn(make_plan(options(given.model, given.seed)), given.seed)
    command = f"python tools/measure_loads.py {given.directory} --model {given.model} --seed {given.seed}"
    run_new_sweep(plan, given.directory, PlainProgress(sys.stderr), command=command)


if __name__ == "__main__":
    main()
