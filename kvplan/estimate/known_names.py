"""What a form offers by name: models, GPUs, formats, and the release that counts where none is chosen."""

from __future__ import annotations

from typing import Any

from kvplan.catalog.devices.gpus import known_gpus
from kvplan.catalog.models import profiles
from kvplan.catalog.releases.vllm import latest_vllm
from kvplan.estimate.weights import NAMED_FORMATS
from kvplan.settings import KNOBS
from kvplan.units import format_bytes


def known_names() -> dict[str, Any]:
    """Return the names with what people see beside them."""
    gpus = [
        {"id": each.id, "name": each.name, "memory": format_bytes(each.memory_bytes, digits=0), "aliases": each.aliases}
        for each in known_gpus()
    ]
    models = [{"name": each["name"], "id": each["id"], "aliases": each["aliases"]} for each in profiles()]
    return {
        "models": models,
        "gpus": gpus,
        "weights": ["auto", "none", *NAMED_FORMATS],
        "caches": list(KNOBS["kv_cache_dtype"].choices),
        "dtypes": list(KNOBS["dtype"].choices),
        "release": latest_vllm(),
    }
