"""What all manifests share: the image, the model's directory, the GPUs' label, and comments that tell the plan."""

from __future__ import annotations

import json
import math
import re
import shlex
from functools import cache
from pathlib import PurePath
from typing import Any, Final

from kvplan import __version__
from kvplan.catalog.releases.facts import release_number
from kvplan.paths import profiles_dir
from kvplan.planner.choices.deployment import PlannedDeployment
from kvplan.planner.choices.verdict import Figure
from kvplan.planner.launch.engines import checkpoint_name, vllm_command

CACHE: Final = "/root/.cache/huggingface"
"""Where the images keep what they download."""
START_SECONDS: Final = 1800
"""How long loading may take before a container counts as failed."""
SHARED_MEMORY: Final = "16Gi"
_FIRST_ROCM_IMAGE: Final = "0.14.0"
"""The first release with an image of vLLM's own for AMD; before it AMD built them."""


def image(deployment: PlannedDeployment) -> tuple[str, str]:
    """(repository, tag) of the engine's container."""
    version = deployment.prediction.version
    if deployment.choice.gpu.vendor != "amd":
        return "vllm/vllm-openai", f"v{version}"
    number, first = release_number(version), release_number(_FIRST_ROCM_IMAGE)
    is_own = number is not None and first is not None and number >= first
    return ("vllm/vllm-openai-rocm", f"v{version}") if is_own else ("rocm/vllm", "latest")


def entry_point(deployment: PlannedDeployment) -> list[str]:
    """What the container is told before its arguments: vLLM's own images start ``vllm serve`` by themselves."""
    return [] if image(deployment)[0].startswith("vllm/") else ["vllm", "serve"]


def arguments(deployment: PlannedDeployment, model_id: str) -> list[str]:
    """What follows ``vllm serve``."""
    return shlex.split(vllm_command(deployment, checkpoint_name(deployment, model_id)))[2:]


def local_directory(model_id: str) -> str | None:
    """The directory to mount for a model that is a path: its own, or that of its file; None for a hub id."""
    path = PurePath(model_id)
    if not path.is_absolute():
        return None
    return str(path.parent if path.suffix.casefold() in (".gguf", ".json") else path)


def object_name(model_id: str) -> str:
    """``meta-llama/Llama-3.1-8B`` -> ``llama-3-1-8b``: lower-case letters, digits and hyphens, a letter first."""
    last = model_id.rsplit("/", 1)[-1].lower()
    name = re.sub(r"[^a-z0-9]+", "-", last.removesuffix(".gguf").removesuffix(".json")).strip("-")
    name = name if name[:1].isalpha() else f"model-{name}"
    return name[:50].rstrip("-")


def gpu_label(deployment: PlannedDeployment) -> tuple[str, list[str]] | None:
    """(name, values) of the nodes' label that says they have this GPU; None where it is not known."""
    for name, labels in _labels().items():
        if deployment.choice.gpu.id in labels:
            return name, labels[deployment.choice.gpu.id]
    return None


@cache
def _labels() -> dict[str, dict[str, list[str]]]:
    document = json.loads((profiles_dir() / "gpu-labels.json").read_text(encoding="utf-8"))
    return {name: labels for name, labels in document.items() if isinstance(labels, dict)}


def plan_comments(deployment: PlannedDeployment, model_id: str, *more: str, mount: str) -> str:
    """Lines of a comment: whose shape was sized, what must be there, what was planned and predicted, and ``more``.

    mount: what a directory of one's own is to the containers.
    """
    spec, times = deployment.choice.weights.spec, []
    for name in ("ttft", "tpot"):
        found = deployment.expected.time(name, "p50")
        times += [] if found is None or math.isinf(found.middle) else [f"{name.upper()} p50 {_milliseconds(found)}"]
    cost = "" if deployment.usd_per_hour is None else f", ${deployment.usd_per_hour:,.2f} per hour"
    tokens = deployment.prediction.kv_cache_tokens * deployment.choice.layout.data_parallel_size
    lines = [
        *([f"sized as {spec.sized_as}"] if spec.sized_as is not None else []),
        *([_directory_comment(mount)] if local_directory(model_id) is not None else []),
        f"kvplan {__version__}: {model_id} on {deployment.name}{cost}",
        f"Predicted of each replica: {'; '.join([f'{tokens:,} tokens of KV cache', *times])}",
        *more,
    ]
    return "".join(f"# {line}\n" for line in lines)


def _directory_comment(mount: str) -> str:
    return f"The model's directory is a {mount}: it must be there on every node that serves."


def _milliseconds(found: Figure) -> str:
    ends = f"{1000 * found.between.low:,.0f}", f"{1000 * found.between.high:,.0f}"
    return f"{1000 * found.middle:,.0f} ms (9 in 10 from {ends[0]} to {ends[1]})"


def yaml_text(*documents: dict[str, Any]) -> str:
    """The documents as YAML, without anchors: what stands twice is written twice."""
    import yaml

    class PlainDumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    return yaml.dump_all(documents, Dumper=PlainDumper, sort_keys=False, width=120)
