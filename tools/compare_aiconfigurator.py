"""Step times of aiconfigurator-core beside kvplan's, on the published rows that it can do.

Run it in an environment of its own:

    python3.11 -m venv ENV && ENV/bin/pip install aiconfigurator-core==0.12.0
    ENV/bin/python tools/compare_aiconfigurator.py

Both play the same loads by the same rules; aiconfigurator's steps have no host, as it does not model one. Rows: grades
A and B on GPUs and models that its tables have, one instance, without data-parallel groups. Its silicon_sample.csv is
not read.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

import aiconfigurator_core  # noqa: E402
from aiconfigurator_core.sdk import EngineHandle  # noqa: E402

from fit_kernel_speeds import SYSTEMS  # noqa: E402
from kernel_speeds.models import FORMATS, SampledModel  # noqa: E402
from kernel_speeds.sampling import _path as config_folder  # noqa: E402
from kvplan.catalog.devices.measured import load_measured  # noqa: E402
from kvplan.estimate.speed.queueing.figures import quantile  # noqa: E402
from kvplan.estimate.speed.queueing.play import play  # noqa: E402
from kvplan.planner.choices.trial import Trial, capacity_of, speed_model  # noqa: E402
from published_speeds.models import model_kind  # noqa: E402
from published_speeds.playing import engine_rules, played_load, pool_tokens  # noqa: E402
from published_speeds.predictions import start_of  # noqa: E402
from published_speeds.rows import PublishedRow, read_rows  # noqa: E402
from published_speeds.scores import RowScore, score_row  # noqa: E402
from published_speeds.settings import ENGINES, Deployed, deployed  # noqa: E402

CONFIGS = Path(aiconfigurator_core.__file__).parent / "model_configs"


@dataclass
class TableSteps:
    """Seconds of a step as the tables add up, asked once for lengths that are 3 % apart or less."""

    handle: Any
    known: dict[tuple[int, int, int], float] = field(default_factory=dict)

    def seconds(self, num_tokens: int, num_sequences: int, num_sampled: int, num_kv: int, num_pairs: float) -> float:
        """One step, see ``simulation.StepClock``."""
        decoding = num_sequences if num_tokens == num_sequences else max(num_sequences - 1, 0)
        prompt = 0 if num_tokens == num_sequences else num_tokens - decoding
        context = max(round((num_kv - prompt) / max(decoding, 1)), 1)
        key = (_coarse(prompt), _coarse(decoding), _coarse(context))
        if key not in self.known:
            self.known[key] = self._ask(*key) / 1000
        return self.known[key]

    def _ask(self, prompt: int, decoding: int, context: int) -> float:
        if not prompt:
            return float(self.handle.decode_step_latency(decoding, context, 2))
        if not decoding:
            return float(self.handle.predict_prefill_latency(1, prompt))
        return float(self.handle.mixed_step_latency(prompt, decoding, min(prompt, 8192), 2 * context))


def _coarse(number: int) -> int:
    if number < 32:
        return number
    step = 2 ** (number.bit_length() - 5)
    return -(-number // step) * step


def main() -> None:
    measured, errors = load_measured(None), defaultdict(list)
    with tempfile.TemporaryDirectory() as work:
        for row in read_rows():
            if isinstance(row, PublishedRow) and row.grade in "AB":
                for name, pair in _errors(row, measured, Path(work)).items():
                    errors[name].append(pair)
    for name, pairs in sorted(errors.items()):
        ours, theirs = (sorted(abs(pair[side]) for pair in pairs) for side in (0, 1))
        print(f"{name:32}{len(pairs):4} rows  kvplan {_summary(ours)}  aiconfigurator {_summary(theirs)}")


def _summary(ordered: list[float]) -> str:
    return f"{100 * statistics.median(ordered):4.0f} /{100 * quantile(ordered, 0.9):4.0f} %"


def _errors(row: PublishedRow, measured: Any, work: Path) -> dict[str, tuple[float, float]]:
    """By kind and figure: (kvplan's error, aiconfigurator's)."""
    score = score_row(row, measured)
    if not isinstance(score, RowScore) or score.gpu not in SYSTEMS:
        return {}
    found = deployed(row)
    layout = found.choice.layout
    if layout.pipeline_parallel_size > 1 or layout.data_parallel_size > 1:
        return {}
    handle = _handle(found, work)
    if handle is None:
        return {}
    try:
        told = _played(row, found, measured, handle)
    except (RuntimeError, ValueError, KeyError):  # the package's own: it lacks kernels for a step of the load
        return {}
    kind = f"{model_kind(found.spec)}, {score.generation}"
    return {
        f"{kind}, {name}": (figure.deviation, told[name] / figure.measured - 1)
        for name, figure in score.figures.items()
        if name in told
    }


def _handle(found: Deployed, work: Path) -> Any:
    """None where the tables lack the model or the format."""
    name = found.spec.id
    if not (CONFIGS / f"{name.replace('/', '--')}_config.json").exists():
        return None
    trial = speed_model(Trial(found.request, found.workload), found.choice, start_of(found)).work
    dense, experts = FORMATS.get(trial.speed_format, FORMATS["bfloat16"])
    size = found.choice.layout.tensor_parallel_size
    options: dict[str, Any] = {"tp_size": size, "gemm_quant_mode": dense, "kvcache_quant_mode": "bfloat16"}
    options["fmha_quant_mode"] = "bfloat16"
    if model_kind(found.spec) != "dense":
        options |= {"moe_tp_size": size, "moe_ep_size": 1, "moe_quant_mode": experts}
    folder = config_folder(SampledModel(name, name, (size,), "dense"), work)
    try:
        return EngineHandle.compile(folder, SYSTEMS[found.choice.gpu.id], ENGINES[found.engine], **options)
    except (RuntimeError, ValueError, KeyError, FileNotFoundError):
        return None


def _played(row: PublishedRow, found: Deployed, measured: Any, handle: Any) -> dict[str, float]:
    start = start_of(found)
    trial = Trial(found.request, found.workload, measured)
    tokens = capacity_of(trial, found.choice, start).average_sequences * found.workload.average_context
    pool = pool_tokens(row, found, start, tokens)
    load = played_load(row, found.replicas, pool)
    played = play(load, engine_rules(row, found, start, pool), TableSteps(handle))
    told = {
        "throughput": found.replicas * played.output_throughput,
        "ttft": 1000 * float(getattr(played.ttft, row.measured.ttft_kind)),
    }
    if played.tpot is not None:
        told["tpot"] = 1000 * float(getattr(played.tpot, row.measured.tpot_kind))
    return told


if __name__ == "__main__":
    main()
