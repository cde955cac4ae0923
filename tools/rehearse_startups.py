"""Starts real vLLM on a GPU that is not there, and lays what it measured beside what kvplan predicts.

    python tools/rehearse_startups.py                                  # the table beside kvplan; nothing is started
    python tools/rehearse_startups.py --python VLLM/bin/python         # its release's cases again; a minute each
    python tools/rehearse_startups.py --python PATH --case ID --write  # one, and writes what it measured

``tools/paper_gpu`` stands for CUDA's runtime, driver, cuBLAS and NVML. Kernels do nothing, memory is accounted and
never touched; vLLM's CUDA wheel loads a model with empty weights, compiles it, profiles and sizes its KV cache as on
the GPU that the catalogue describes, with PyTorch's own allocator and empty caches: a first start. Of several GPUs one
rank runs, beside ranks that are not there either. So it shows what PyTorch allocates and reserves: weights as each
format's kernels want them, requests' state, the peak of the profile run, and pieces that cannot be given back. It
cannot show what lies outside PyTorch: the driver's context, the modules of kernels and of cuBLAS, NCCL's buffers, and
what CUDA graphs take. Nor what depends on values or on timings. From compute capability 9.0 on flashinfer compiles
modules for minutes, once. Needs gcc and binutils.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from kvplan.catalog.devices.gpus import find_gpu  # noqa: E402
from kvplan.catalog.models import find_profile  # noqa: E402
from kvplan.catalog.reader import read_config  # noqa: E402
from kvplan.errors import KvplanError, UsageError  # noqa: E402
from kvplan.estimate.vllm.prediction import predict_ranks  # noqa: E402
from kvplan.settings import ServingSettings  # noqa: E402
from kvplan.units import MIB  # noqa: E402
from paper_gpu.build import build  # noqa: E402

TABLE: Final = ROOT / "tests" / "data" / "vllm_rehearsals.json"
_START: Final = Path(__file__).parent / "paper_gpu" / "start.py"
_ASK: Final = (
    "import importlib.metadata as m, sysconfig; print(m.version('vllm')); print(sysconfig.get_path('purelib'))"
)

_PROCESSORS: Final = json.loads((TABLE.parent / "vllm_rehearsal_processors.json").read_text(encoding="utf-8"))

Case = dict[str, Any]
"""``id``, ``release``, ``model`` (a profile), ``config`` (fields laid over the profile's), ``gpu``, ``settings`` (by
vLLM's names), ``rank`` (of several GPUs, whose process it is; 0 where it is not said), ``processor`` (that of a model
that sees, a key of ``vllm_rehearsal_processors.json``; without it text alone can be served), ``measured`` (bytes, by
``paper_gpu/start.py``)."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """kvplan's side of a case, in bytes: ``non_kv`` is what vLLM's budget counts of PyTorch's memory.

    ``pinned`` of it lie free in segments that the profile run made and cannot give back.
    """

    weights: int
    non_kv: int
    pinned: int


def load_cases(path: Path = TABLE) -> list[Case]:
    return json.loads(path.read_text(encoding="utf-8"))["cases"]


def model_config(case: Case) -> dict[str, Any]:
    """The config.json of a case's model. UsageError where no profile has its name."""
    profile = find_profile(case["model"])
    if profile is None:
        raise UsageError(f"{case['id']}: there is no profile named '{case['model']}'.")
    return {**profile["config"], **case.get("config", {})}


def num_gpus(case: Case) -> int:
    """Return over how many GPUs a case is spread."""
    sizes = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
    return math.prod(case["settings"].get(name, 1) for name in sizes)


def predict(case: Case) -> Prediction:
    """Predict a case's bytes, but for what a rehearsal cannot show."""
    spec = read_config(model_config(case), model_id=case["model"])
    known = {each.name for each in fields(ServingSettings)}
    if unknown := set(case["settings"]) - known:
        raise UsageError(f"{case['id']}: kvplan has no setting named {', '.join(sorted(unknown))}.")
    ranks = predict_ranks(spec, find_gpu(case["gpu"]), ServingSettings(**case["settings"]), case["release"]).ranks
    rank = ranks[case.get("rank", 0) // case["settings"].get("tensor_parallel_size", 1)]
    torch = rank.weight_bytes + rank.state_bytes + rank.activation.peak_bytes + rank.segment_bytes + rank.pinned_bytes
    return Prediction(rank.weight_bytes, torch, rank.pinned_bytes)


def summarise(cases: Sequence[Case]) -> str:
    """Return how far off kvplan is over ``cases``: the median error, and the largest as share and as bytes."""
    errors = [(abs(predict(case).non_kv - case["measured"]["non_kv"]), case["measured"]["non_kv"]) for case in cases]
    shares = [error / total for error, total in errors]
    median, most = statistics.median(shares), max(errors)[0] / MIB
    return f"{len(cases)} cases: {median:.2%} off in the median, {max(shares):.2%} and {most:.0f} MiB at most"


@dataclass(frozen=True, slots=True)
class Environment:
    """A Python that has vLLM, and the libraries of the paper GPU that were built for it."""

    python: Path
    packages: Path
    libraries: Sequence[Path]

    def variables(self, case: Case, caches: Path) -> dict[str, str]:
        gpu, folder = find_gpu(case["gpu"]), self.libraries[0].parent
        capability = gpu.compute_capability.replace(".", "")
        major, count = capability[:-1], num_gpus(case)
        return {
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            "LD_PRELOAD": ":".join(map(str, self.libraries)),
            "LD_LIBRARY_PATH": str(folder),
            "PAPER_NAME": f"NVIDIA {gpu.name}",
            "PAPER_CC": capability,
            "PAPER_TOTAL": str(gpu.memory_bytes),
            "PAPER_SMS": str(gpu.multiprocessors),
            "PAPER_L2": str(gpu.l2_cache_bytes),
            "PAPER_COUNT": str(count),
            "PAPER_LINK": "2" if gpu.joins_by_nvlink(count) else str(int(gpu.peer_access)),
            "VLLM_CACHE_ROOT": str(caches / "vllm"),
            "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
            "TRITON_CACHE_DIR": str(caches / "triton"),
            # what Triton and flashinfer compile is linked with these
            "TRITON_LIBCUDA_PATH": str(folder),
            "LIBRARY_PATH": str(folder),
            "CPATH": ":".join(map(str, self.packages.glob("nvidia/*/include"))),
            # flashinfer compiles for the GPUs named here, else for what it finds, and refuses a family that its
            # compiler does not know. Nothing runs: one of a family is enough, and 8.6 for all before 9.0
            "FLASHINFER_CUDA_ARCH_LIST": "8.6" if int(major) < 9 else f"{major}.0a",
        }

    def run(self, case: Case, log: Path | None, history: Path | None) -> dict[str, Any]:
        """Start vLLM, at most 20 minutes; what it measured, or {"error": why it did not}."""
        with tempfile.TemporaryDirectory(prefix="rehearsal-") as name:
            file = Path(name, "case.json")
            asked = {
                "config": model_config(case),
                "arguments": case["settings"],
                "rank": case.get("rank", 0) if num_gpus(case) > 1 else None,
                "processor": _PROCESSORS.get(case.get("processor")),
                "history": history and str(history),
            }
            file.write_text(json.dumps(asked))
            command = [self.python, "-X", "faulthandler", _START, file]
            try:
                ended = subprocess.run(
                    command, env=self.variables(case, Path(name)), capture_output=True, text=True, timeout=1200
                )
            except subprocess.TimeoutExpired:
                return {"error": "not ready within 20 minutes"}
        if log is not None:
            log.write_text(ended.stdout + ended.stderr)
        found = [line for line in ended.stdout.splitlines() if line.startswith("MEASURED ")]
        if not found:
            return {"error": f"ended with {ended.returncode}: {ended.stderr[-300:]}"}
        return json.loads(found[-1].removeprefix("MEASURED "))


def _environment(python: Path, folder: Path) -> tuple[str, Environment]:
    """The release of vLLM that ``python`` has, and the libraries for it, built into ``folder``."""
    try:
        asked = subprocess.run([python, "-c", _ASK], check=True, capture_output=True, text=True).stdout.split("\n")
    except (OSError, subprocess.CalledProcessError):
        raise UsageError(
            f"{python} has no vLLM.", hint="name the Python of an environment with its CUDA wheel"
        ) from None
    packages = Path(asked[1])
    try:
        libraries = build(packages, folder)
    except (OSError, StopIteration, subprocess.CalledProcessError) as error:
        raise UsageError(
            f"The paper GPU cannot be built for {python}: {error}",
            hint="it needs gcc, nm, readelf, and vLLM's wheel for CUDA with the packages nvidia-* that it requires",
        ) from None
    return asked[0].partition("+")[0], Environment(python, packages, libraries)


def _print_case(case: Case, measured: Mapping[str, Any]) -> None:
    found = predict(case)
    total, error = measured["non_kv"], found.non_kv - measured["non_kv"]
    beside_weights = error - (found.weights - measured["weights"])
    print(
        f"{case['id']:55s} {total / MIB:9.0f} {found.non_kv / MIB:9.0f} {error / MIB:+8.1f} {error / total:+7.2%}"
        f" {(found.weights - measured['weights']) / MIB:+8.1f} {beside_weights / MIB:+8.1f}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, action="append", default=[], help="a Python with vLLM; repeatable")
    parser.add_argument("--case", action="append", help="a case's id; repeatable (default: all)")
    parser.add_argument("--cases", type=Path, default=TABLE, metavar="FILE", help="the table (default: %(default)s)")
    parser.add_argument("--missing", action="store_true", help="only cases that have no measurement")
    parser.add_argument("--write", action="store_true", help="write what was measured into the table")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep what vLLM printed")
    parser.add_argument("--history", type=Path, metavar="DIR", help="write PyTorch's record of allocations of a case")
    arguments = parser.parse_args()
    try:
        return _rehearse(arguments)
    except KvplanError as error:
        print(f"error: {error}" + (f"\nhint: {error.hint}" if error.hint else ""), file=sys.stderr)
        return 2


def _rehearse(arguments: argparse.Namespace) -> int:
    cases = load_cases(arguments.cases)
    if unknown := set(arguments.case or ()) - {case["id"] for case in cases}:
        raise UsageError(f"There is no case named {', '.join(sorted(unknown))} in {arguments.cases}.")
    chosen = [case for case in cases if not arguments.case or case["id"] in arguments.case]
    failed = 0
    print(
        f"{'MiB of PyTorch without the KV cache':55s} {'vLLM':>9} {'kvplan':>9} {'error':>8} {'':7}"
        f" {'weights':>8} {'rest':>8}"
    )
    with tempfile.TemporaryDirectory(prefix="paper-gpu-") as name:
        environments = {}
        for index, python in enumerate(arguments.python):
            Path(name, str(index)).mkdir()
            release, environment = _environment(python, Path(name, str(index)))
            environments[release] = environment
        for case in chosen:
            measured = case.get("measured")
            if environments and case["release"] in environments and not (arguments.missing and measured):
                log = arguments.logs and arguments.logs / f"{case['id']}.log"
                now = environments[case["release"]].run(case, log, arguments.history)
                if "error" in now:
                    print(f"{case['id']:55s} {now['error'][:200]}", flush=True)
                    failed += 1
                    continue
                known = measured or {}
                changed = [f"{key} {known[key]} -> {now[key]}" for key in known if known[key] != now[key]]
                if changed:
                    print(f"{case['id']:55s} measured before: {', '.join(changed)}")
                    failed += not arguments.write
                measured = now
                if arguments.write:
                    _write(arguments.cases, case["id"], now)
            elif environments:
                continue
            if measured:
                _print_case(case, measured)
                sys.stdout.flush()
        if not environments and chosen:
            print(summarise([case for case in chosen if "measured" in case]))
    return 1 if failed else 0


def _write(path: Path, name: str, measured: Mapping[str, Any]) -> None:
    """Write one case's bytes into the table, a case to a line."""
    table = json.loads(path.read_text(encoding="utf-8"))
    for case in table["cases"]:
        if case["id"] == name:
            case["measured"] = measured
    parts = []
    for key, value in table.items():
        rows = ",\n".join("  " + json.dumps(row) for row in value) if isinstance(value, list) else ""
        parts.append(f' "{key}": [\n{rows}\n ]' if rows else f' "{key}": {json.dumps(value)}')
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
