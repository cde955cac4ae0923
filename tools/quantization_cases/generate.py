"""Random ``quantization_config`` sections: every loader, with lists as tools and people write them."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from quantization_cases.models import MODELS, PACKED, SmallModel
from quantization_cases.rules import Config

_SIZES = (32, 64, 128)
_EXPRESSIONS = (
    r".*down_proj$",
    r".*\.(mlp|mixer)\..*",
    r".*layers\.[0-3]\..*",
    r".*layers\.1\..*",
    r".*layers\.(1|11)\..*(o_proj|out_proj)",
    r".*self_attn.*",
    r".*(q|k|v|o)_proj$",
    r".*(gate|up)_proj",
    r".*experts\..*",
    r".*\.shared_experts\..*",
    r".*lm_head",
    r".*proj.*",
)
_GLOBS = ("*lm_head*", "*.layers.1.*", "*down_proj", "*o_proj", "*.mlp.*", "*layers.1*", "*experts*", "*self_attn*")
_PARTS = ("lm_head", ".layers.1.", "layers.1", "self_attn", "down_proj", "o_proj", "mlp.experts", "layers.0.", "proj")


class Lists:
    """Draws lists of names for one model."""

    def __init__(self, random: Random, model: SmallModel) -> None:
        self.random = random
        self.model = model
        self.siblings = {part: parts for parts in PACKED.values() for part in parts}

    def maybe(self, chance: float = 0.5) -> bool:
        return self.random.random() < chance

    def literal(self) -> list[str]:
        """Some modules by their whole names, mostly with those that vLLM merges with them, and all experts at once."""
        found: list[str] = []
        for name in self.random.sample(self.model.names(), self.random.randint(1, 12)):
            parent, _, last = name.rpartition(".")
            if ".experts." in name and self.maybe(0.95):
                group = name.rpartition(".experts.")[0] + ".experts."
                found += [other for other in self.model.names() if other.startswith(group)]
            elif last in self.siblings and self.maybe(0.95):
                found += [f"{parent}.{sibling}" for sibling in self.siblings[last]]
            elif "embed_tokens" not in name:
                found.append(name)
        return list(dict.fromkeys(found))

    def expressions(self, count: int) -> list[str]:
        return [f"re:{pattern}" for pattern in self.random.sample(_EXPRESSIONS, count)]

    def globs(self) -> list[str]:
        return self.random.sample(_GLOBS, self.random.randint(0, 2))

    def parts(self) -> list[str]:
        return self.random.sample(_PARTS, self.random.randint(0, 3))

    def layers(self) -> list[str]:
        """Whole layers, as ``model.layers.3.``."""
        chosen = self.random.sample(range(12), self.random.randint(0, 4))
        return [f"{self.model.published}layers.{layer}." for layer in chosen]


def _weights(random: Random) -> Config:
    """A compressed-tensors group without its targets."""
    integer = {"type": "int", "symmetric": random.random() < 0.7, "dynamic": False}
    floating = {"type": "float", "symmetric": True, "dynamic": False}
    inputs = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": random.random() < 0.5, "symmetric": True}
    packed = {"format": "pack-quantized", "input_activations": None}
    return random.choice(
        [
            {**packed, "weights": {**integer, "num_bits": 4, "strategy": "group", "group_size": random.choice(_SIZES)}},
            {**packed, "weights": {**integer, "num_bits": 8, "strategy": "group", "group_size": 128}},
            {**packed, "weights": {**integer, "num_bits": 4, "strategy": "channel", "group_size": None}},
            {"format": "int-quantized", "input_activations": {**inputs, "type": "int", "dynamic": True},
             "weights": {**integer, "symmetric": True, "num_bits": 8, "strategy": "channel"}},
            {"format": "float-quantized", "input_activations": {**inputs, "dynamic": True},
             "weights": {**floating, "num_bits": 8, "strategy": "channel"}},
            {"format": "float-quantized", "input_activations": inputs,
             "weights": {**floating, "num_bits": 8, "strategy": "tensor"}},
            {"format": "float-quantized", "input_activations": {**inputs, "dynamic": True},
             "weights": {**floating, "num_bits": 8, "strategy": "block", "block_structure": [128, 128]}},
            {"format": "nvfp4-pack-quantized",
             "input_activations": random.choice([None, {"num_bits": 4, "type": "float", "dynamic": False}]),
             "weights": {**floating, "num_bits": 4, "strategy": "tensor_group", "group_size": 16}},
            {"format": "mxfp4-pack-quantized", "input_activations": None,
             "weights": {**floating, "num_bits": 4, "strategy": "group", "group_size": 32}},
            {"format": "mxfp8-quantized", "input_activations": None,
             "weights": {**floating, "num_bits": 8, "strategy": "group", "group_size": 32,
                         "scale_dtype": "torch.uint8"}},
        ]
    )  # fmt: skip


def compressed_tensors(lists: Lists) -> Config:
    random, groups = lists.random, dict[str, Config]()
    for index in range(random.randint(1, 3)):
        targets: list[str] = []
        if lists.maybe(0.6):
            targets.append("Linear")
        if lists.maybe(0.6):
            targets += lists.expressions(random.randint(1, 3))
        if lists.maybe(0.3) or not targets:
            targets += lists.literal()
        random.shuffle(targets)
        groups[f"group_{index}"] = {"targets": targets, **_weights(random)}
    ignore = [*(["lm_head"] if lists.maybe() else []), *(lists.literal() if lists.maybe(0.4) else [])]
    ignore += lists.expressions(random.randint(0, 2)) if lists.maybe() else []
    return {"config_groups": groups, "ignore": ignore, "format": "mixed-precision"}


def awq(lists: Lists) -> Config:
    kept = [*lists.parts(), *lists.layers(), *(lists.literal() if lists.maybe(0.3) else [])]
    own: Config = {"lm_head": True} if lists.maybe(0.3) else {}
    listed = {"modules_to_not_convert": kept} if lists.maybe(0.8) else {}
    return {"bits": 4, "group_size": lists.random.choice(_SIZES), "zero_point": lists.maybe(), **listed, **own}


_DYNAMIC = (r".*down_proj.*", r".*\.layers\.1\..*", r".*self_attn.*", r".*\.(mlp|mixer)\..*", r".*o_proj",
            r".*experts.*", r".*lm_head.*", r".*layers\.[2-5]\..*", r".*qkv_proj.*|.*[qkv]_proj.*")  # fmt: skip


def gptq(lists: Lists) -> Config:
    random, dynamic = lists.random, dict[str, Config]()
    for pattern in random.sample(_DYNAMIC, random.randint(0, 3)):
        sign = random.choice(("+:", "+:", "-:", ""))
        values: Config = {"bits": random.choice((4, 8))} if lists.maybe(0.8) else {}
        if lists.maybe(0.4):
            values["group_size"] = random.choice((*_SIZES, -1))
        dynamic[sign + pattern] = {} if sign == "-:" else values
    own: Config = {"lm_head": True} if lists.maybe(0.3) else {}
    if lists.maybe(0.2):
        part = "mixer" if lists.model.name == "nemotron_h" else "self_attn"
        inner = [[f"{part}.q_proj", f"{part}.k_proj", f"{part}.v_proj"], [f"{part}.o_proj"], ["down_proj"]]
        own["modules_in_block_to_quantize"] = inner
    size = random.choice((*_SIZES, -1))
    return {
        "bits": random.choice((4, 8)),
        "group_size": size,
        "desc_act": False,
        "sym": True,
        "dynamic": dynamic,
        **own,
    }


def auto_round(lists: Lists) -> Config:
    random, extra = lists.random, dict[str, Config]()
    kind = random.choice(("int", "int", "int", "mx_fp"))
    own = {"bits": random.choice((4, 8)), "group_size": 32} if kind == "mx_fp" else {
        "bits": random.choice((2, 4, 8)), "group_size": random.choice((*_SIZES, -1))}  # fmt: skip
    if lists.maybe(0.6):
        bits = random.choice((8, 16) if kind == "mx_fp" else (4, 8, 16))
        extra |= {name: {"bits": bits, "group_size": 32, "sym": True} for name in lists.literal()}
    if lists.maybe(0.3):
        extra[random.choice((r".*down_proj.*", r".*layers\.1\..*", r".*self_attn.*"))] = {
            "bits": random.choice((8, 16))
        }
    if lists.maybe(0.3):
        extra["lm_head"] = {"bits": random.choice((8, 16)), "group_size": 32}
    blocks: Config = {"block_name_to_quantize": [f"{lists.model.published}layers"]} if lists.maybe(0.4) else {}
    layout = "auto_round:llm_compressor" if kind == "mx_fp" else "auto_round:auto_gptq"
    return {**own, "sym": True, "data_type": kind, "packing_format": layout, "extra_config": extra, **blocks}


def bitsandbytes(lists: Lists) -> Config:
    kept = lists.random.sample(("lm_head", "down_proj", "o_proj", "self_attn", "mlp"), lists.random.randint(0, 2))
    kept += [name.removesuffix(".") for name in lists.layers()] + (lists.literal() if lists.maybe(0.3) else [])
    return {lists.random.choice(("load_in_4bit", "load_in_8bit")): True, "llm_int8_skip_modules": kept}


_ALGORITHMS = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "NVFP4", "W4A16_NVFP4", "MXFP8")


def modelopt(lists: Lists) -> Config:
    random = lists.random
    excluded = [
        *lists.globs(),
        *(["lm_head"] if lists.maybe(0.6) else []),
        *(lists.literal() if lists.maybe(0.4) else []),
    ]
    excluded += [f"{name.removesuffix('.')}*" for name in lists.layers()] if lists.maybe(0.3) else []
    own: Config = {"quant_algo": random.choice(_ALGORITHMS), "group_size": None}
    if lists.maybe():
        layers: dict[str, Config] = {}
        for _ in range(random.randint(1, 3)):
            algorithm = random.choice(_ALGORITHMS)
            layers |= {name: {"quant_algo": algorithm} for name in lists.literal()}
        if lists.maybe(0.4):
            layers["lm_head"] = {"quant_algo": "W4A16_NVFP4", "group_size": 16}
        own = {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    if lists.maybe(0.3):  # as the file hf_quant_config.json has it
        return {"quantization": {**own, "exclude_modules": excluded}}
    return {**own, "ignore": excluded}


def fp8(lists: Lists) -> Config:
    listed = lists.literal() if lists.maybe(0.8) else []
    key = lists.random.choice(("modules_to_not_convert", "ignored_layers"))
    shape: Config = {"weight_block_size": [128, 128], "activation_scheme": "dynamic"}
    plain: Config = {"activation_scheme": lists.random.choice(("static", "dynamic"))}
    return {key: listed, **(shape if lists.maybe() else plain)}


def fbgemm_fp8(lists: Lists) -> Config:
    return {"modules_to_not_convert": lists.literal(), "activation_scale_ub": 1200.0}


def mxfp4(lists: Lists) -> Config:
    return {"modules_to_not_convert": lists.parts()}


def mxfp8(lists: Lists) -> Config:
    return {"ignored_layers": [*lists.parts(), *lists.literal()]}


def experts_int8(_: Lists) -> Config:
    return {}


def _quark_values(random: Random) -> Config:
    inputs = {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": random.random() < 0.5}
    power = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0", "is_dynamic": False}
    nvfp4 = [{"dtype": "fp4", "qscheme": "per_group", "group_size": 16}, {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}]
    weights: list[tuple[Any, Any]] = [
        ({"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": False}, inputs),
        ({"dtype": "fp8_e4m3", "qscheme": "per_channel", "is_dynamic": False}, {**inputs, "is_dynamic": True}),
        ({"dtype": "fp8_e4m3", "qscheme": "per_block", "block_size": [128, 128], "symmetric": True}, None),
        ({"dtype": "int8", "qscheme": "per_channel", "symmetric": True}, {**inputs, "is_dynamic": True}),
        ({"dtype": "int4", "qscheme": "per_group", "group_size": random.choice(_SIZES), "symmetric": True}, None),
        ({"dtype": "int4", "qscheme": "per_group", "group_size": 128, "symmetric": False}, None),
        (power, {**power, "is_dynamic": True}),
        (nvfp4, nvfp4),
    ]
    weight, activations = random.choice(weights)
    return {"weight": weight, "input_tensors": activations, "output_tensors": None, "bias": None}


def quark(lists: Lists) -> Config:
    random = lists.random
    excluded = [*lists.literal(), *lists.expressions(random.randint(0, 1))] if lists.maybe(0.6) else []
    excluded += ["lm_head"] if lists.maybe() else []
    patterns = random.sample(("*down_proj", "*self_attn*", "*layers.1.*", "*experts*", "*.mlp.*"), random.randint(0, 2))
    named = {name: _quark_values(random) for name in patterns}
    return {"exclude": excluded, "layer_quant_config": named, "layer_type_quant_config": {},
            "global_quant_config": _quark_values(random), "export": {"kv_cache_group": []}}  # fmt: skip


def _torchao_class(random: Random) -> Config:
    by_row = [{"_type": "PerRow", "_data": {}}] * 2
    return random.choice(
        [
            {"_type": "Int4WeightOnlyConfig", "_data": {"group_size": random.choice(_SIZES)}},
            {"_type": "Int8WeightOnlyConfig", "_data": {"group_size": None}},
            {"_type": "Float8WeightOnlyConfig", "_data": {}},
            {"_type": "Float8DynamicActivationFloat8WeightConfig", "_data": {"granularity": by_row}},
        ]
    )


def torchao(lists: Lists) -> Config:
    random = lists.random
    skipped = random.sample(("lm_head", "down_proj", "self_attn", "layers.1", "mlp"), random.randint(0, 2))
    if lists.maybe():
        return {"quant_type": {"default": _torchao_class(random)}, "modules_to_not_convert": skipped}
    listed: dict[str, Config | None] = {"_default": _torchao_class(random)} if lists.maybe() else {}
    for pattern in random.sample(
        (r".*down_proj", r".*layers\.1\..*", r".*\.o_proj", r".*mlp\..*"), random.randint(0, 3)
    ):
        listed[f"re:{pattern}"] = _torchao_class(random)
    if lists.maybe(0.4):
        listed[random.choice(("lm_head", "down_proj"))] = None
    default = {"_type": "ModuleFqnToConfig", "_data": {"module_fqn_to_config": listed}}
    return {"quant_type": {"default": default}, "modules_to_not_convert": skipped}


MAKERS: dict[str, Callable[[Lists], Config]] = {
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
_OFTEN = (
    "compressed-tensors",
    "compressed-tensors",
    "compressed-tensors",
    "modelopt",
    "modelopt",
    "gptq",
    "auto-round",
)


def make_case(seed: int) -> tuple[SmallModel, Config]:
    """Return the model and the ``quantization_config`` of a number: the same ones each time."""
    random = Random(seed)
    model = random.choice(MODELS)
    loader = random.choice((*MAKERS, *_OFTEN))
    return model, {"quant_method": loader, **MAKERS[loader](Lists(random, model))}
