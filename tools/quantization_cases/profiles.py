"""A shipped profile as vLLM builds it: the modules that transformers makes of its config, merged as vLLM does."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from typing import Any

from quantization_cases.models import PACKED, ServedModule, Shard, SmallModel

_ROUTERS = ("gate", "router", "shared_expert_gate", "proj", "fn", "layer")
"""Last names of products that choose experts or mix streams: vLLM makes them without a format."""
_WHOLE = {part: whole for whole, parts in PACKED.items() for part in parts}
_ROOTS = {
    "nemotron_h": ("backbone.", "model."),
    "kimi_k25": ("language_model.model.",) * 2,
    "deepseek_v4": ("", "model."),
}
"""What a checkpoint's names and vLLM's begin with, where transformers' model has other ones."""


def quantization_of(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """The section that says how the weights are stored, with the name of its loader."""
    text = config.get("text_config")
    inner = text.get("quantization_config") if isinstance(text, Mapping) else None
    found = config.get("quantization_config") or inner or config.get("compression_config")
    if found is None:
        return None
    named = str(found.get("quant_method") or ("modelopt" if "quant_algo" in found else "compressed-tensors"))
    return {**json.loads(json.dumps(found)), "quant_method": "modelopt" if named.startswith("modelopt") else named}


def written_out(section: dict[str, Any], model: SmallModel) -> dict[str, Any]:
    """``section`` with globs of ``quantized_layers``, which stand for long lists in some profiles, written out."""
    layers: dict[str, Any] = {}
    for key, values in (section.get("quantized_layers") or {}).items():
        names = [name for name in model.names() if fnmatch(name, key)] if "*" in key else [key]
        layers |= dict.fromkeys(names, values)
    return {**section, "quantized_layers": layers} if layers else section


def served_profile(name: str, config: Mapping[str, Any]) -> SmallModel:
    """Return the modules of a profile. Raises what transformers raises where it has no class for it."""
    from independent_count import CORRECTIONS, TOWERS, build_meta_model

    model = build_meta_model(dict(config))
    kinds = {path: type(module).__name__ for path, module in model.named_modules()}
    found: dict[str, list[Shard]] = {}
    copies: dict[str, int] = {}
    rest = 0
    for path, tensor in model.named_parameters(remove_duplicate=True):
        parts = path.split(".")
        if any(tower in parts for tower in TOWERS):
            continue
        module = path.removesuffix(".weight")
        experts = _experts(path, tuple(tensor.shape))
        if experts is not None:
            group, shards, count = experts
            found.setdefault(group, []).extend(shards)
            copies[group] = count
        elif _is_product(module, kinds) and tensor.dim() == 2:
            found.setdefault(module, []).append((parts[-2], tensor.shape[0], tensor.shape[1]))
        else:
            rest += tensor.numel()
    for path, tensor in model.named_buffers():
        rest += tensor.numel() if path.rsplit(".", 1)[-1] in CORRECTIONS or "moe_statics" in path else 0
    built = next(path.partition("layers.")[0] for path in found if ".layers." in path)
    own = (built, "language_model.model." if "language_model" in built else "model.")
    published, served = _ROOTS.get(str(config.get("model_type")), own)
    return SmallModel(name, dict(config), tuple(_modules(found, copies, built, served)), rest, published, served)


def _is_product(module: str, kinds: Mapping[str, str]) -> bool:
    last = module.rpartition(".")[2]
    kind = kinds.get(module, "")
    if last == "lm_head" or kind.endswith("Embedding"):
        return True
    return kind.endswith("Linear") and last not in _ROUTERS


def _experts(path: str, shape: tuple[int, ...]) -> tuple[str, list[Shard], int] | None:
    """Experts' matrices that transformers stacks, as a checkpoint has them: (group, shards, how many)."""
    group, _, last = path.removesuffix(".weight").rpartition(".")
    if len(shape) != 3 or not group.endswith("experts"):
        return None
    count, rows, inputs = shape
    if last == "gate_up_proj":
        return group, [("gate_proj", rows // 2, inputs), ("up_proj", rows // 2, inputs)], count
    return group, [(last, rows, inputs)], count


def _modules(
    found: Mapping[str, list[Shard]], copies: Mapping[str, int], built: str, served: str
) -> Iterator[ServedModule]:
    """Merged as vLLM does where all parts are there."""
    merged: dict[str, list[Shard]] = {}
    for path, shards in found.items():
        own = path.replace(built, served, 1) if path.startswith(built) else path
        parent, _, last = own.rpartition(".")
        if path in copies:
            yield ServedModule(own, "RoutedExperts", tuple(shards), copies[path])
        elif last == "lm_head":
            head = "language_model.lm_head" if served.startswith("language_model") else "lm_head"
            yield ServedModule(head, "ParallelLMHead", tuple(shards))
        elif "embed" in last:
            yield ServedModule(own, "VocabParallelEmbedding", tuple(shards))
        else:
            whole = _WHOLE.get(last)
            siblings = [part for part, name in _WHOLE.items() if name == whole]
            together = whole is not None and all(f"{path.rpartition('.')[0]}.{part}" in found for part in siblings)
            merged.setdefault(f"{parent}.{whole}" if together else own, []).extend(shards)
    for prefix, shards in merged.items():
        yield ServedModule(prefix, "LinearBase", _joined(prefix, shards))


def _joined(prefix: str, shards: list[Shard]) -> tuple[Shard, ...]:
    """The input products of a delta net are two matrices of one checkpoint and one of another: counted as one."""
    last = prefix.rpartition(".")[2]
    if not last.startswith("in_proj_") or len(shards) < 2:
        return tuple(shards)
    return ((last, sum(rows for _, rows, _ in shards), shards[0][2]),)
