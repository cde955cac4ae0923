"""Every name of vLLM's that the adapter relies on, looked up in a real vLLM: a canary for its next release.

``KVPLAN_VLLM_PYTHON`` names the Python that has it; ``make check-engines`` sets it. Sources are read, not imported.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

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


def test_the_server_is_a_module(package: Path) -> None:
    assert (package / "entrypoints" / "openai" / "api_server.py").exists()


@pytest.mark.parametrize(("file", "text"), [(file, text) for file, texts in TEXTS.items() for text in texts])
def test_the_words_that_are_read_are_still_there(package: Path, file: str, text: str) -> None:
    source = " ".join((package / file).read_text().replace('"\n', "").replace("'\n", "").split())
    assert text in source.replace('f"', "").replace(' "', ""), f"{file} has no {text!r} any more"
