"""In which format each module of a model is, as vLLM 0.33's loaders decide it when they build the module.

Written from vllm/model_executor/layers/quantization, apart from kvplan: these functions take vLLM's own modules, with
their prefixes and shards, and lists of names after vLLM has rewritten them. A module whose shards are in different
formats is refused, as there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from fnmatch import fnmatch
from typing import Any

from quantization_cases.models import PACKED, ServedModule, SmallModel
from quantization_cases.stored import (
    FP8_MATRIX,
    FP8_ROW,
    FP8_STATIC,
    FP8_TILE,
    MODELOPT,
    MXFP4,
    MXFP8,
    NVFP4,
    NVFP4_STATIC,
    Stored,
    integers,
)

Config = dict[str, Any]


class RefusedError(Exception):
    """vLLM would not load such a checkpoint."""


def shards_of(module: ServedModule) -> list[str]:
    """The prefixes of a module's shards; its own where vLLM merges nothing."""
    parent, _, last = module.prefix.rpartition(".")
    return [f"{parent}.{name}" for name in PACKED.get(last, [last])]


def _agreed(found: Iterable[Any]) -> Any:
    values = list(found)
    if any(value != values[0] for value in values):
        raise RefusedError
    return values[0]


def _of_experts(module: ServedModule, decide: Callable[[str], Any]) -> Any:
    """What ``decide`` says of a module's prefix. Experts of which it says something else by name cannot be loaded."""
    names = [f"{module.prefix}.0.{name}" for name, _, _ in module.shards] if module.kind == "RoutedExperts" else []
    return _agreed(map(decide, (module.prefix, *names)))


def rewritten(model: SmallModel, name: str) -> str:
    """A name of the checkpoint as vLLM has it (hf_to_vllm_mapper)."""
    return name.replace(model.published, model.served, 1) if name.startswith(model.published) else name


def _list(model: SmallModel, names: Iterable[str] | None) -> list[str]:
    return [name if name.startswith("re:") else rewritten(model, name) for name in names or []]


def _is_skipped(module: ServedModule, listed: list[str], mode: str = "exact", *, merges: bool = True) -> bool:
    def has(name: str) -> bool:
        return name in listed if mode == "exact" else any(entry in name for entry in listed)

    is_merged = module.prefix.rpartition(".")[2] in PACKED
    if is_merged and merges:
        return has(module.prefix) or _agreed(map(has, shards_of(module)))
    if "experts" in module.prefix and mode == "exact":
        return any(module.prefix in entry for entry in listed if "experts" in entry)
    return has(module.prefix)


def _matches(name: str, target: str) -> bool:
    return re.match(target[3:], name) is not None if target.startswith("re:") else name == target


# --- compressed-tensors ---------------------------------------------------------------------------------------------

_CLASS = {"LinearBase": "QKVParallelLinear", "RoutedExperts": "RoutedExperts", "ParallelLMHead": "ParallelLMHead",
          "VocabParallelEmbedding": "VocabParallelEmbedding"}  # fmt: skip


def compressed_tensors(model: SmallModel, config: Config, module: ServedModule) -> Stored | None:
    targets: dict[str, Config] = {}
    for group in config["config_groups"].values():
        for target in group["targets"]:
            targets[target if target.startswith("re:") or "." not in target else rewritten(model, target)] = group
    ignored = _list(model, config.get("ignore"))
    if module.kind == "RoutedExperts":
        if "Linear" in targets:
            targets.setdefault("RoutedExperts", targets["Linear"])
        names = [f"{module.prefix}.0.{name}" for name, _, _ in module.shards]
        group = _agreed(_group_of(name, [name], "RoutedExperts", targets, ignored) for name in names)
    else:
        group = _group_of(module.prefix, shards_of(module), _CLASS[module.kind], targets, ignored)
    found = None if group is None else compressed_format(group["weights"], group)
    if module.kind == "VocabParallelEmbedding" and found is not None and group["weights"]["type"] != "int":
        raise RefusedError
    return found


def _group_of(
    prefix: str, shards: list[str], kind: str, targets: dict[str, Config], ignored: list[str]
) -> Config | None:
    if not any(_matches(prefix, entry) for entry in ignored):
        if _agreed(any(_matches(shard, entry) for entry in ignored) for shard in shards):
            return None
    else:
        return None
    first = next((target for target in targets if _matches(prefix, target)), None)
    if first is None and shards != [prefix]:
        each = [next((target for target in targets if _matches(shard, target)), None) for shard in shards]
        if any(each) and len({id(targets[found]) if found else None for found in each}) > 1:
            raise RefusedError  # shards in different groups, or in none
        first = each[0]
    if first is None:
        plain = (target for target in targets if not target.startswith("re:"))
        first = next((target for target in plain if target.lower() in kind.lower()), None)
    return None if first is None else targets[first]


def compressed_format(weights: Config, group: Config) -> Stored:
    """By the scheme that vLLM chooses for these weights."""
    bits, size, strategy = weights["num_bits"], weights.get("group_size"), weights["strategy"]
    has_inputs = group.get("input_activations") is not None
    if weights["type"] == "float":
        if bits == 4:
            return MXFP4 if size == 32 else NVFP4_STATIC if has_inputs else NVFP4
        if strategy == "group":
            return MXFP8
        is_static = has_inputs and not group["input_activations"]["dynamic"]
        shape = {"tensor": FP8_STATIC if is_static else FP8_MATRIX, "channel": FP8_ROW, "block": FP8_TILE}
        return shape[strategy]
    if bits == 8 and strategy == "channel" and group.get("format") != "pack-quantized":
        return Stored(8, "row")
    return integers(bits, size if strategy == "group" else -1, zeros=not weights["symmetric"])


# --- packed integers ------------------------------------------------------------------------------------------------


def awq(model: SmallModel, config: Config, module: ServedModule) -> Stored | None:
    if module.kind == "VocabParallelEmbedding" or (module.kind == "ParallelLMHead" and not config.get("lm_head")):
        return None
    listed = _list(model, config.get("modules_to_not_convert"))
    if _is_skipped(module, listed, "substring", merges=module.kind == "LinearBase"):
        return None
    return integers(config["bits"], config["group_size"], zeros=config["zero_point"])


def gptq(model: SmallModel, config: Config, module: ServedModule) -> Stored | None:
    if module.kind == "VocabParallelEmbedding" or (module.kind == "ParallelLMHead" and not config.get("lm_head")):
        return None
    listed = [rewritten(model, name) for part in config.get("modules_in_block_to_quantize") or [] for name in part]
    is_listed = _agreed(any(entry in shard for entry in listed) for shard in shards_of(module))
    if listed and module.kind != "RoutedExperts" and not is_listed:
        return None

    def decide(prefix: str) -> Stored | None:
        bits, size = config["bits"], config["group_size"]
        for pattern, values in config.get("dynamic", {}).items():
            if pattern.startswith("-:"):
                if re.match(pattern[2:], prefix):
                    return None
            elif re.match(pattern.removeprefix("+:"), prefix):
                bits, size = values.get("bits", bits), values.get("group_size", size)
                break
        return integers(bits, size, zeros=True)

    found = _of_experts(module, decide)
    if module.kind == "LinearBase" and any(decide(shard) != found for shard in shards_of(module)):
        raise RefusedError  # its patterns name shards, which vLLM does not ask for
    return found


def auto_round(model: SmallModel, config: Config, module: ServedModule) -> Stored | None:
    if module.kind == "VocabParallelEmbedding":
        return None
    given = {rewritten(model, name): values for name, values in config.get("extra_config", {}).items()}
    blocks = [rewritten(model, name) for name in config.get("block_name_to_quantize") or []]
    if module.prefix in given and given[module.prefix].get("bits", 16) >= 16:
        return None
    bits, size = _auto_round_values(config, given, blocks, module)
    if bits >= 16:
        return None
    if "mx_fp" in config.get("data_type", "int"):
        return MXFP4 if bits == 4 else MXFP8
    return integers(bits, size, zeros=True)


def _auto_round_values(config: Config, given: Config, blocks: list[str], module: ServedModule) -> tuple[int, int]:
    prefix = module.prefix

    def values(name: str, quantized: bool = True) -> tuple[int, int]:
        plain = (config["bits"], config["group_size"]) if quantized else (16, -1)
        special = (key for key in given if set(key) & set(r"*+?^$()[]{}|\\") and re.search(key, name))
        key = name if name in given else next(special, None)
        if key is None:
            return plain
        return given[key].get("bits", plain[0]), given[key].get("group_size", plain[1])

    if prefix in given:
        return values(prefix)
    short = next((key for key in given if prefix.endswith(f".{key}")), None)
    if short is not None:
        return values(short)
    quantized = any(prefix.startswith(block) for block in blocks) if blocks else module.kind != "ParallelLMHead"
    if module.kind == "RoutedExperts":
        below = [values(key, quantized) for key in given if key.startswith(f"{prefix}.")]
        if below:
            return _agreed(below)
        return _of_experts(module, lambda name: values(name, quantized))
    shards = shards_of(module)
    if shards != [prefix]:
        return _agreed(values(shard, quantized) for shard in shards)
    return values(prefix, quantized)


def bitsandbytes(model: SmallModel, config: Config, module: ServedModule) -> Stored | None:
    if module.kind not in ("LinearBase", "RoutedExperts"):
        return None
    listed = set(_list(model, config.get("llm_int8_skip_modules")))

    def is_skipped(name: str) -> bool:
        parts = name.split(".")
        above = {".".join(parts[: end + 1]) for end in range(len(parts))}
        return bool(listed & set(parts)) or bool(listed & above)

    if _of_experts(module, is_skipped) or _agreed(map(is_skipped, shards_of(module))):
        return None
    return Stored(8, "row") if config.get("load_in_8bit") else Stored(4, "group", 64)


# --- ModelOpt -------------------------------------------------------------------------------------------------------


def _is_excluded(model: SmallModel, listed: list[str], module: ServedModule) -> bool:
    split: list[str] = []
    for entry in listed:
        ends = len(entry) > 1 and entry[-1] == "*" and entry[-2] != "."
        split += [entry[:-1], f"{entry[:-1]}.*"] if ends else [entry]
    names = [rewritten(model, entry) for entry in split]
    if not names:
        return False
    if _is_skipped(module, names):
        return True
    if any(entry in module.prefix for entry in names):
        return True
    return any(fnmatch(module.prefix, entry) for entry in names)


def modelopt(model: SmallModel, config: Config, module: ServedModule) -> Stored | None:
    inner = config.get("quantization", config)
    listed = inner.get("exclude_modules", config.get("ignore", []))
    if module.kind == "VocabParallelEmbedding" or _is_excluded(model, listed, module):
        return None
    if inner["quant_algo"] != "MIXED_PRECISION":
        return MODELOPT[inner["quant_algo"]]
    layers = {rewritten(model, name): values["quant_algo"] for name, values in inner["quantized_layers"].items()}
    found = layers.get(module.prefix) or ("lm_head" in layers and module.kind == "ParallelLMHead" and layers["lm_head"])
    shards = shards_of(module)
    if not found and shards != [module.prefix]:
        found = _agreed(layers.get(shard) for shard in shards)
    if not found:
        below = [algo for name, algo in layers.items() if name.startswith(f"{module.prefix}.")]
        found = _agreed(below) if below else None
    return MODELOPT[found] if found else None


# --- floats ---------------------------------------------------------------------------------------------------------


def fp8(model: SmallModel, config: Config, module: ServedModule) -> Stored | None:
    if module.kind not in ("LinearBase", "RoutedExperts"):
        return None
    if _is_skipped(module, _list(model, config.get("ignored_layers") or config.get("modules_to_not_convert"))):
        return None
    if model.config.get("model_type") == "deepseek_v4" and model.config.get("expert_dtype", "fp4") == "fp4":
        packed = NVFP4_STATIC if config.get("moe_quant_algo") == "NVFP4" else MXFP4
        return packed if module.kind == "RoutedExperts" else replace(FP8_TILE, scale_bytes=1)
    if config.get("weight_block_size"):
        return FP8_TILE
    return FP8_STATIC if config["activation_scheme"] == "static" else FP8_MATRIX


def fbgemm_fp8(model: SmallModel, config: Config, module: ServedModule) -> Stored | None:
    if module.kind != "LinearBase" or _is_skipped(module, _list(model, config["modules_to_not_convert"])):
        return None
    return FP8_ROW


def mxfp4(_: SmallModel, config: Config, module: ServedModule) -> Stored | None:
    return MXFP4 if module.kind == "RoutedExperts" else None


def mxfp8(model: SmallModel, config: Config, module: ServedModule) -> Stored | None:
    return modelopt(model, {"quant_algo": "MXFP8", "exclude_modules": config["ignored_layers"]}, module)


def experts_int8(_: SmallModel, config: Config, module: ServedModule) -> Stored | None:
    return Stored(8, "row") if module.kind == "RoutedExperts" else None


# --- Quark and torchao ----------------------------------------------------------------------------------------------


def quark(model: SmallModel, config: Config, module: ServedModule) -> Stored | None:
    if module.kind not in ("LinearBase", "RoutedExperts"):
        return None
    excluded = _list(model, config["exclude"])
    if module.kind == "RoutedExperts" and any(
        entry == module.prefix or entry.startswith(f"{module.prefix}.") for entry in excluded
    ):
        return None
    if any(_matches(module.prefix, entry) for entry in excluded):
        return None
    if _agreed(any(_matches(shard, entry) for entry in excluded) for shard in shards_of(module)):
        return None
    layers = {rewritten(model, name): values for name, values in config["layer_quant_config"].items()}

    def values(name: str) -> Config:
        for pattern, given in layers.items():
            if fnmatch(name, pattern) if "*" in pattern else name in pattern:
                return given
        return config["global_quant_config"]

    _of_experts(module, values)
    return _quark_format(_agreed(map(values, shards_of(module))))


def _quark_format(given: Config) -> Stored:
    weight, inputs = given["weight"], given["input_tensors"]
    if isinstance(weight, list):
        return NVFP4_STATIC
    dtype, scheme = weight["dtype"], weight["qscheme"]
    if dtype == "fp4":
        return MXFP4
    if dtype == "int4":
        return integers(4, weight["group_size"], zeros=not weight["symmetric"])
    if scheme == "per_block":
        return FP8_TILE
    if scheme == "per_channel":
        return Stored(8, "row")
    return FP8_MATRIX if inputs["is_dynamic"] else FP8_STATIC


def torchao(_: SmallModel, config: Config, module: ServedModule) -> Stored | None:
    if module.kind != "LinearBase":
        return None
    default = config["quant_type"]["default"]
    listed = default["_data"].get("module_fqn_to_config", {})
    skipped = [*config.get("modules_to_not_convert", []), *(name for name, given in listed.items() if given is None)]
    if any(f".{entry}." in f".{module.prefix}." for entry in skipped):
        return None
    if default["_type"] != "ModuleFqnToConfig":
        return _torchao_format(default)
    given = listed.get(module.prefix)
    if given is None:
        patterns = (name for name in listed if name.startswith("re:"))
        full = next((name for name in patterns if re.fullmatch(name[3:], module.prefix)), None)
        given = listed[full] if full else listed.get("_default")
    return None if given is None else _torchao_format(given)


def _torchao_format(given: Config) -> Stored:
    data = given["_data"]
    if given["_type"] == "Int4WeightOnlyConfig":
        return Stored(4, "group", data.get("group_size", 128), scale_bytes=4)
    if given["_type"] == "Int8WeightOnlyConfig":
        return Stored(8, "row", scale_bytes=2)
    granularity = data.get("granularity", [{"_type": "PerTensor"}])
    return FP8_ROW if granularity[-1]["_type"] == "PerRow" else FP8_MATRIX


RULES: dict[str, Callable[[SmallModel, Config, ServedModule], Stored | None]] = {
    "compressed-tensors": compressed_tensors,
    "awq": awq,
    "gptq": gptq,
    "auto-round": auto_round,
    "bitsandbytes": bitsandbytes,
    "modelopt": modelopt,
    "fp8": fp8,
    "fbgemm_fp8": fbgemm_fp8,
    "mxfp4": mxfp4,
    "mxfp8": mxfp8,
    "experts_int8": experts_int8,
    "quark": quark,
    "torchao": torchao,
}


def count_bytes(model: SmallModel, config: Config) -> int:
    """Bytes of the whole model, with everything that no format packs in 16 bits. RefusedError as vLLM refuses."""
    decide = RULES[config["quant_method"]]
    total = 2 * model.rest
    for module in model.modules:
        found = decide(model, config, module)
        for _, rows, inputs in module.shards:
            each = 2 * rows * inputs if found is None else found.num_bytes(rows, inputs)
            total += module.copies * each
    return total
