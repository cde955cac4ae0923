"""Fits profiles/speeds/ to aiconfigurator-core's tables of measured kernels. Run it in an environment of its own:

    python3.11 -m venv ENV && ENV/bin/pip install aiconfigurator-core==0.12.0
    ENV/bin/python tools/fit_kernel_speeds.py h100-sxm [GPU...]

For each GPU, engine and format the tables are asked for the seconds of decode steps, prompts and mixed steps of ten
models at several tensor-parallel sizes. Only coefficients are kept, with their errors; kvplan needs no such package.

A fit is dropped where its median error on dense models is above 8 %, or where what it calls the overhead of a layer
is more than 300 us: such tables were measured launch by launch. Where several ranks do not fit (90th percentile above
30 %: all-reduces over PCIe are no line), single GPUs are fitted alone, and links stay a guess.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

import aiconfigurator_core  # noqa: E402

from kernel_speeds.all_reduces import links_alone  # noqa: E402
from kernel_speeds.errors import errors, model_left_out, of_kind  # noqa: E402
from kernel_speeds.fitting import Sampled, fit_dense, fit_experts, fit_latent, sampled  # noqa: E402
from kernel_speeds.models import FORMATS, MODELS  # noqa: E402
from kernel_speeds.sampling import sample  # noqa: E402
from kvplan.catalog.devices.gpus import GpuProfile, find_gpu  # noqa: E402
from kvplan.catalog.devices.kernel_tables import FOLDER, SCHEMA  # noqa: E402
from kvplan.estimate.speed.steps.rank_step import KernelSpeed  # noqa: E402

SYSTEMS = {
    "a100-80gb-sxm": "a100_sxm",
    "h100-sxm": "h100_sxm",
    "h200": "h200_sxm",
    "b200": "b200_sxm",
    "b300": "b300_sxm",
    "gb200": "gb200",
    "l40s": "l40s",
    "rtx-pro-6000": "rtx_pro_6000_server",
}
"""kvplan's GPUs and the tables' systems."""
ENGINES = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}
_MOST_MEDIAN_PCT = 8.0
_MOST_LAYER_SECONDS = 300e-6
_MOST_P90_PCT = 30.0
_LEAST_POINTS = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gpus", nargs="+", choices=list(SYSTEMS), metavar="GPU")
    parser.add_argument("--engines", nargs="+", choices=list(ENGINES), default=list(ENGINES))
    parser.add_argument("--out", type=Path, default=ROOT / "profiles" / FOLDER)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        for name in arguments.gpus:
            path = arguments.out / f"{name}.json"
            fits = _kept(path, arguments.engines) + _fits(find_gpu(name), arguments.engines, Path(work))
            if fits:
                document = _document(find_gpu(name), sorted(fits, key=_place))
                path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _kept(path: Path, engines: list[str]) -> list[dict[str, Any]]:
    """The file's fits of other engines."""
    fits = json.loads(path.read_text(encoding="utf-8"))["fits"] if path.exists() else []
    return [fit for fit in fits if fit["engine"]["name"] not in engines]


def _place(fit: dict[str, Any]) -> tuple[int, int]:
    return list(ENGINES).index(fit["engine"]["name"]), list(FORMATS).index(fit["dtype"])


def _fits(gpu: GpuProfile, engines: list[str], work: Path) -> list[dict[str, Any]]:
    found = (_fit(gpu, engine, name, work) for engine in engines for name in FORMATS if _has(gpu, name))
    return [fit for fit in found if fit is not None]


def _document(gpu: GpuProfile, fits: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "device": gpu.id,
        "source": {
            "package": "aiconfigurator-core",
            "version": version("aiconfigurator-core"),
            "license": "Apache-2.0",
            "attribution": "kernels measured by NVIDIA and the contributors of AIConfigurator "
            "(github.com/ai-dynamo/aiconfigurator); fitted by kvplan's tools/fit_kernel_speeds.py",
            "date": datetime.now(timezone.utc).date().isoformat(),
        },
        "units": "seconds, bytes per second, operations per second; errors in percent",
        "fits": fits,
    }


def _has(gpu: GpuProfile, name: str) -> bool:
    return name.removesuffix("-block") in gpu.dense_flops


def _fit(gpu: GpuProfile, engine: str, name: str, work: Path) -> dict[str, Any] | None:
    points = [point for model in MODELS for point in sample(model, SYSTEMS[gpu.id], engine, name, work)]
    if sum(point.model.kind == "dense" for point in points) < _LEAST_POINTS:
        return _dropped(gpu, engine, name, "too few points")
    data = sampled(points, gpu, name)
    speed = _all_kinds(data, gpu, name)
    found = errors(data, speed)
    if found["dense"]["p90_pct"] > _MOST_P90_PCT:
        data = data.of([point.tensor_parallel_size == 1 for point in data.points])
        speed = replace(_all_kinds(data, gpu, name), links=None)
        found = errors(data, speed)
    if found["dense"]["median_pct"] > _MOST_MEDIAN_PCT or speed.base.layer_seconds > _MOST_LAYER_SECONDS:
        return _dropped(gpu, engine, name, f"{found['dense']}, {1e6 * speed.base.layer_seconds:.0f} us a layer")
    print(f"{gpu.id} {engine} {name}: {len(data.points)} points, {found}", flush=True)
    left_out = {
        "dense": model_left_out(of_kind(data, "dense"), lambda part: fit_dense(part, gpu, name)),
        "mixture": _mixture_left_out(data, speed, gpu, name),
    }
    return {
        "engine": {"name": engine, "title": ENGINES[engine], "version": _tables_version(SYSTEMS[gpu.id], engine)},
        "dtype": name,
        "models": list(dict.fromkeys(point.model.tables for point in data.points)),
        "points": len(data.points),
        **_coefficients(replace(speed, links=speed.links or links_alone(gpu, SYSTEMS[gpu.id]))),
        "errors": found | {"model_left_out": {kind: error for kind, error in left_out.items() if error}},
    }


def _dropped(gpu: GpuProfile, engine: str, name: str, reason: str) -> None:
    print(f"{gpu.id} {engine} {name}: dropped, {reason}", flush=True)


def _all_kinds(data: Sampled, gpu: GpuProfile, name: str) -> KernelSpeed:
    speed = fit_dense(of_kind(data, "dense"), gpu, name)
    kinds = {point.model.kind for point in data.points}
    if "mixture" in kinds:
        speed = fit_experts(of_kind(data, "mixture"), speed, gpu, name)
    if "latent" in kinds:
        speed = fit_latent(of_kind(data, "latent"), speed, gpu)
    return speed


def _mixture_left_out(data: Sampled, speed: KernelSpeed, gpu: GpuProfile, name: str) -> dict[str, float] | None:
    mixtures = of_kind(data, "mixture")
    return model_left_out(mixtures, lambda part: fit_experts(part, speed, gpu, name)) if mixtures.points else None


def _coefficients(speed: KernelSpeed) -> dict[str, Any]:
    """Four digits each: more would claim more than the fit knows."""
    found: dict[str, Any] = {"coefficients": _rounded(speed.base.as_json())}
    for name, group in (("experts", speed.experts), ("latent", speed.latent)):
        if group is not None:
            fitted = {each: getattr(group, each) for each in group.__slots__}
            found[name] = _rounded({each: value for each, value in fitted.items() if value is not None})
    if speed.links is not None:
        share = speed.links.share
        shares = _by_ranks(share) if isinstance(share, Mapping) else _digits(share)
        found["links"] = {"all_reduce_seconds": _by_ranks(speed.links.all_reduce_seconds), "share": shares}
    return found


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: _digits(value) for name, value in values.items()}


def _by_ranks(values: Mapping[int, float]) -> dict[str, float]:
    return _rounded({str(ranks): value for ranks, value in values.items()})


def _digits(value: float) -> float:
    return float(f"{value:.4g}")


def _tables_version(system: str, engine: str) -> str:
    """The engine's release that the package answers from."""
    path = Path(aiconfigurator_core.__file__).parent / "systems" / "query_versions.yaml"
    known = yaml.safe_load(path.read_text(encoding="utf-8"))
    slots = known["overrides"].get(system, {}).get(engine) or known["defaults"][engine]
    return str(slots["current"])


if __name__ == "__main__":
    main()
