"""Every name of vLLM's that the adapter and its plug-in rely on, looked up in a real vLLM: a canary for the next.

``KVPLAN_VLLM_PYTHON`` names the Python that has it; ``make check-engines`` sets it. Sources are read, not imported.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from kvplan.engines.vllm.adapter import MODULES, SERVER

PYTHON = os.environ.get("KVPLAN_VLLM_PYTHON")
pytestmark = pytest.mark.skipif(PYTHON is None, reason="KVPLAN_VLLM_PYTHON names no Python that has vLLM")

OPTIONS = (
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "max_num_seqs",
    "block_size",
    "max_model_len",
    "max_num_batched_tokens",
    "kv_cache_dtype",
    "enforce_eager",
    "load_format",
    "served_model_name",
    "scheduler_cls",
)
TEXTS = {
    "v1/core/kv_cache_utils.py": (
        "KV cache size: %s tokens",
        "Maximum concurrency for %s tokens per request",
        "To serve at least one request with the model's max seq len",
        "No available memory for the cache blocks",
        "the estimated maximum model length is",
        "Reserve the null block",
    ),
    "v1/worker/cpu_worker.py": ("Explicitly set (", "is less than desired CPU memory utilization", "on kv cache"),
    "v1/worker/utils.py": ("is less than desired GPU memory utilization",),
    "v1/engine/core.py": ("Initializing a V1 LLM engine (v%s)",),
    "v1/metrics/loggers.py": (
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:num_preemptions",
        "vllm:prefix_cache_queries",
        "vllm:cache_config_info",
    ),
    "platforms/cpu.py": ("cache_config.block_size = 128",),
}
CODE = {
    "platforms/cpu.py": (
        # what a fork server takes for granted (kvplan/engines/vllm/adapter.py)
        'os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"',
        'os.environ["TORCHINDUCTOR_CPP_DYNAMIC_THREADS"] = "1"',
        'parallel_config.distributed_executor_backend = "mp"',
    ),
    # what the plug-in's scheduler is, and reads (kvplan/engines/vllm/plugin/kvplan_limits.py)
    "v1/core/sched/scheduler.py": (
        "class Scheduler(SchedulerInterface):",
        "self.max_num_active_reqs =",
        "self.max_num_scheduled_tokens =",
        "num_running >= self.max_num_active_reqs",
        "token_budget = self.max_num_scheduled_tokens",
        "def schedule(self",
        "def update_from_output(",
        "def get_request_counts(self) -> tuple[int, int]:",
        "kv_cache_usage=self.kv_cache_manager.usage",
    ),
    "v1/core/sched/output.py": ("total_num_scheduled_tokens: int", "preempted_req_ids: set[str] | None"),
    "utils/ompmultiprocessing.py": ('envs_dict["KMP_AFFINITY"]', 'envs_dict["OMP_NUM_THREADS"]'),
}


@pytest.fixture(scope="module")
def package() -> Path:
    """The folder of the package."""
    assert PYTHON is not None
    ask = "import importlib.util as u; print(u.find_spec('vllm').submodule_search_locations[0])"
    found = subprocess.run([PYTHON, "-c", ask], capture_output=True, text=True, timeout=60, check=True)
    return Path(found.stdout.strip())


@pytest.mark.parametrize("option", OPTIONS)
def test_the_server_has_the_option(package: Path, option: str) -> None:
    assert f"    {option}:" in (package / "engine" / "arg_utils.py").read_text() or option == "served_model_name"


@pytest.mark.parametrize("module", [name for name in MODULES if name.startswith("vllm.")])
def test_the_modules_are_there_that_are_run_or_imported_beforehand(package: Path, module: str) -> None:
    assert package.parent.joinpath(*module.split(".")).with_suffix(".py").exists()


def test_the_server_is_among_them() -> None:
    assert SERVER in MODULES


@pytest.mark.parametrize(("file", "text"), [(file, text) for file, texts in TEXTS.items() for text in texts])
def test_the_words_that_are_read_are_still_there(package: Path, file: str, text: str) -> None:
    source = " ".join((package / file).read_text().replace('"\n', "").replace("'\n", "").split())
    assert text in source.replace('f"', "").replace(' "', ""), f"{file} has no {text!r} any more"


@pytest.mark.parametrize(("file", "code"), [(file, code) for file, lines in CODE.items() for code in lines])
def test_the_code_that_is_relied_on_is_still_there(package: Path, file: str, code: str) -> None:
    assert code in (package / file).read_text(), f"{file} has no {code!r} any more"
