"""From settings to the drafter of a model, as vLLM chooses it (vllm/config/speculative.py, SpeculativeConfig)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast, get_args

from kvplan.catalog.config_view import ConfigView
from kvplan.catalog.models import find_profile, resolve_model
from kvplan.catalog.reader import parse_config
from kvplan.catalog.spec import Drafter, ModelSpec, SpeculativeMethod
from kvplan.catalog.speculation.heads import dspark_config, eagle_model, medusa_model, multi_token_model
from kvplan.errors import KvplanError, UsageError
from kvplan.files import LARGEST_CONFIG_BYTES, read_text
from kvplan.settings import ServingSettings

_METHODS: Final = get_args(SpeculativeMethod)
_LOOKED_UP: Final = ("ngram", "suffix")
_LOOKED_UP_JSON: Final = '{"method": "ngram", "num_speculative_tokens": 4}'
_EXAMPLE: Final = "--speculative-model meta-llama/Llama-3.2-1B --num-speculative-tokens 4"


@dataclass(frozen=True, slots=True)
class WithSpeculation:
    """A model with its drafter, and the settings with what the drafter decides (draft tokens per step)."""

    spec: ModelSpec
    settings: ServingSettings


def with_speculation(spec: ModelSpec, settings: ServingSettings) -> WithSpeculation:
    """The drafter that ``settings`` ask for beside ``spec``; both as they are where they ask for none.

    Without a method: the model's own layers for multi-token prediction, or what the drafter's name says, as in vLLM.
    UsageError where there is no such drafter, KvplanError where vLLM would refuse the pair.
    """
    if spec.drafter is not None:
        return WithSpeculation(spec, settings)
    if not _asked(settings):
        if settings.acceptance_rate is not None:
            raise UsageError(
                "An acceptance rate needs a drafter, and none is asked for.", hint=f"for example {_EXAMPLE}"
            )
        return WithSpeculation(spec, settings)
    method = _method(spec, settings)
    drafter = _drafter(spec, method, settings)
    return WithSpeculation(replace(spec, drafter=drafter), replace(settings, num_speculative_tokens=drafter.num_tokens))


def _asked(settings: ServingSettings) -> bool:
    return bool(settings.num_speculative_tokens or settings.speculative_model or settings.speculative_method)


def _method(spec: ModelSpec, settings: ServingSettings) -> SpeculativeMethod:
    said, model = settings.speculative_method, (settings.speculative_model or "").casefold()
    name = (said or "").casefold().strip("[]").removesuffix("_gpu")
    if name.endswith("_mtp") or (name == "dspark" and not model and dspark_config(spec) is not None):
        name = "mtp"  # vLLM's older names, one for each family; and DSpark's layers where the checkpoint has them
    if not name:
        name = _inferred(model)
    if name not in _METHODS:
        raise UsageError(f"kvplan does not size the speculative method '{said}'.", hint="one of " + ", ".join(_METHODS))
    return cast("SpeculativeMethod", name)


def _inferred(model: str) -> str:
    """vLLM's guess from the drafter's name."""
    if not model:
        return "mtp"
    if model.strip("[]") in _LOOKED_UP:
        return model.strip("[]")
    if "eagle3" in model:
        return "eagle3"
    if "eagle-" in model:
        return "eagle"
    return "medusa" if "medusa" in model else "draft_model"


def _drafter(spec: ModelSpec, method: SpeculativeMethod, settings: ServingSettings) -> Drafter:
    if method == "mtp":
        return _multi_token(spec, settings)
    count = settings.num_speculative_tokens
    if not count:
        hint = "for example --num-speculative-tokens 4"
        raise UsageError(f"The speculative method {method} needs a number of tokens.", hint=hint)
    if method in _LOOKED_UP:
        return Drafter(method, method, count)
    name = settings.speculative_model
    if name is None:
        raise UsageError(f"The speculative method {method} needs a model.", hint=_EXAMPLE)
    if method == "medusa":
        return Drafter(method, name, count, medusa_model(spec, name, _raw_config(name)))
    if method == "draft_model":
        return Drafter(method, name, count, _second_model(spec, name))
    read = resolve_model(name, assumptions={"architectures": _base_architecture(name)})
    return Drafter(method, name, count, eagle_model(spec, read, auxiliary=method == "eagle3"))


def _multi_token(spec: ModelSpec, settings: ServingSettings) -> Drafter:
    model = multi_token_model(spec)
    if model is None:
        raise UsageError(
            f"{spec.served_id} has no layers for multi-token prediction that its config names.",
            hint=f"name one of its vocabulary with --speculative-model, or --speculative-config '{_LOOKED_UP_JSON}'",
        )
    dspark = dspark_config(spec)
    block = None if dspark is None else ConfigView(dict(dspark)).integer("dspark_block_size", default=model.num_layers)
    count = settings.num_speculative_tokens or block or model.num_layers
    if block is None and count > model.num_layers and count % model.num_layers:
        raise KvplanError(
            f"vLLM takes a multiple of the {model.num_layers} multi-token-prediction layers, not {count} draft tokens.",
            hint=f"use --num-speculative-tokens {model.num_layers}",
        )
    return Drafter("mtp", spec.served_id, count, model)


def _second_model(spec: ModelSpec, name: str) -> ModelSpec:
    """A model of its own, with its own embedding and head. Its rotary table is the target's where both are alike."""
    found = resolve_model(name)
    if found.vocab_size != spec.vocab_size:
        raise KvplanError(
            f"vLLM drafts within one vocabulary: {spec.served_id} has {spec.vocab_size:,} tokens, {found.id} "
            f"{found.vocab_size:,}.",
            hint="choose a smaller model of the same family",
        )
    is_alike = found.rope == spec.rope and found.max_position_embeddings == spec.max_position_embeddings
    return replace(found, rope=None) if is_alike else found


def _base_architecture(name: str) -> str:
    """How the layers of an EAGLE head are read: as Llama's, unless it names DeepSeek's latent attention."""
    try:
        raw = _raw_config(name)
    except KvplanError:
        return "LlamaForCausalLM"
    named = " ".join(map(str, raw.get("architectures") or [])) + str(raw.get("model_type", ""))
    return "DeepseekV3ForCausalLM" if "deepseek" in named.casefold() else "LlamaForCausalLM"


def _raw_config(name: str) -> Mapping[str, Any]:
    """The config of a drafter that is no language model by itself: of a profile, a directory or a config.json."""
    profile = find_profile(name)
    if profile is not None:
        return cast("Mapping[str, Any]", profile["config"])
    path = Path(name).expanduser()
    path = path / "config.json" if path.is_dir() else path
    if not path.exists():
        raise KvplanError(f"{name} is no directory with a config.json.", hint="pass the drafter's directory")
    return parse_config(read_text(path, LARGEST_CONFIG_BYTES, hint="pass the drafter's directory"), where=str(path))
