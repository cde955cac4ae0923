"""The models known by name, with their main figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from kvplan.catalog.devices.gpus import find_gpu, known_gpus
from kvplan.catalog.models import did_you_mean, profiles, read_profile
from kvplan.catalog.releases.vllm import latest_vllm, vllm_release
from kvplan.errors import UsageError
from kvplan.estimate.cache_entries import CacheSettings
from kvplan.estimate.dtypes import serving_dtype
from kvplan.estimate.kv_cache import size_sequence
from kvplan.estimate.vllm.cache_dtypes import kv_cache_dtype
from kvplan.estimate.vllm.prediction import as_attended, as_vllm_stores
from kvplan.estimate.weights import NAMED_FORMATS
from kvplan.settings import KNOBS, ServingSettings
from kvplan.units import format_bytes

SCHEMA: Final = "kvplan.models/1"


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A profile. kv_bytes_per_token: of a token beyond every window; kv_window_bytes_per_token: more within them.

    Both as the newest release of vLLM keeps them on an H100, in the format that the checkpoint was calibrated for.
    """

    name: str
    id: str
    aliases: tuple[str, ...]
    architecture: str
    num_layers: int
    num_parameters: int
    num_active_parameters: int
    max_position_embeddings: int | None
    kv_bytes_per_token: int
    kv_window_bytes_per_token: int
    source: str
    date: str

    def as_json(self) -> dict[str, Any]:
        """Return the model as it stands in ``kvplan models --json``."""
        return asdict(self) | {"aliases": list(self.aliases)}


def known_models(search: str | None = None) -> tuple[KnownModel, ...]:
    """Return the models whose name, id or alias contains ``search``. UsageError where there is none."""
    found = tuple(_known(profile) for profile in profiles() if search is None or _is_called(profile, search))
    if not found:
        hint = f"{did_you_mean(search or '')}`kvplan models` lists the known ones"
        raise UsageError(f"No model's name contains '{search}'.", hint=hint)
    return found


def _is_called(profile: Mapping[str, Any], search: str) -> bool:
    names = (profile["name"], profile["id"], *profile["aliases"])
    return any(search.casefold() in name.casefold() for name in names)


def _known(profile: Mapping[str, Any]) -> KnownModel:
    spec = read_profile(profile)
    dtype, release = serving_dtype(spec.dtype), vllm_release("latest")
    kv_dtype, _ = kv_cache_dtype(spec, find_gpu("h100-sxm"), ServingSettings(), release, dtype)
    settings = CacheSettings(model_dtype=dtype, kv_dtype=kv_dtype, encoder_tokens=1)
    cache = size_sequence(as_attended(spec, release), 1, as_vllm_stores(spec, settings))
    return KnownModel(
        name=profile["name"],
        id=spec.id,
        aliases=tuple(profile["aliases"]),
        architecture=spec.architecture,
        num_layers=spec.num_layers,
        num_parameters=spec.num_parameters,
        num_active_parameters=spec.num_active_parameters,
        max_position_embeddings=spec.max_position_embeddings,
        kv_bytes_per_token=cache.bytes_per_token,
        kv_window_bytes_per_token=cache.window_bytes_per_token,
        source=profile["source"],
        date=profile["date"],
    )


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
