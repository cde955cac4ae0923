"""``quantization_config`` of every loader: which modules are packed, and how, against sizes that were counted by hand.

Sizes are those of Llama 3.1 8B: 8,030,261,248 weights, of which embedding and head are 525,336,576 each and norms
266,240. A layer's matrices have 218,103,808 weights in 43,008 rows, its way down 58,720,256.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvplan.catalog.models import find_profile, resolve_model
from kvplan.catalog.quantization.modules import plain_name
from kvplan.catalog.reader import read_config
from kvplan.catalog.spec import ModelSpec
from kvplan.errors import KvplanError
from kvplan.estimate.weights import size_weights

LAYERS, ROWS, LAYER, DOWN, ENDS, NORMS = 32, 43_008, 218_103_808, 58_720_256, 525_336_576, 266_240
PLAIN = 2 * (2 * ENDS + NORMS)
"""What nearly no format packs."""
EIGHT = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False}
FOUR = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}


def llama(**section: Any) -> ModelSpec:
    profile = find_profile("llama-3.1-8b")
    assert profile is not None
    return read_config({**profile["config"], "quantization_config": section}, model_id="in a format")


def num_bytes(**section: Any) -> int:
    return size_weights(llama(**section), "bfloat16").total_bytes


def compressed(*groups: tuple[list[str], dict[str, Any]], ignore: list[str]) -> int:
    listed = {
        f"group_{index}": {"targets": targets, "weights": weights} for index, (targets, weights) in enumerate(groups)
    }
    return num_bytes(quant_method="compressed-tensors", config_groups=listed, ignore=ignore)


def in_groups(weights: int, bits: int = 4, *, zeros: bool = True) -> int:
    """``weights`` in groups of 128 with a scale in 16 bits, and a zero point."""
    groups = weights // 128
    return weights * bits // 8 + 2 * groups + (groups * bits // 8 if zeros else 0)


def by_row(layers: int) -> int:
    """So many whole layers in 8 bits with a float32 scale for each output, the others in 16."""
    return PLAIN + layers * (LAYER + 4 * ROWS) + (LAYERS - layers) * 2 * LAYER


def test_a_range_of_layers_in_an_expression_with_escaped_dots() -> None:
    assert compressed((["Linear"], EIGHT), ignore=["lm_head", r"re:model\.layers\.[0-3]\..*"]) == by_row(28)
    exact = [f"model.layers.{layer}.{name}" for layer in range(4) for name in _MATRICES]
    assert compressed((["Linear"], EIGHT), ignore=["lm_head", *exact]) == by_row(28)
    assert compressed((["Linear"], EIGHT), ignore=["re:model.layers.[0-3]", "lm_head"]) == by_row(6)  # 10 to 31 too


_MATRICES = (
    *(f"self_attn.{name}_proj" for name in ("q", "k", "v", "o")),
    *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
)


def test_the_first_group_that_names_a_module_has_it() -> None:
    groups = ([r"re:.*mlp\.down_proj$"], EIGHT), ([r"re:.*(self_attn|mlp)\..*_proj$"], FOUR)
    down = LAYERS * (DOWN + 4 * 4096)
    assert compressed(*groups, ignore=["lm_head"]) == PLAIN + down + LAYERS * in_groups(LAYER - DOWN, zeros=False)
    assert compressed(*reversed(groups), ignore=["lm_head"]) == PLAIN + LAYERS * in_groups(LAYER, zeros=False)


def test_a_class_gives_way_to_a_name_in_a_later_group() -> None:
    """find_matched_target asks every group for a name before it asks for a class."""
    assert compressed((["Linear"], FOUR), (["re:.*down_proj"], EIGHT), ignore=[]) == (
        PLAIN + LAYERS * (DOWN + 4 * 4096 + in_groups(LAYER - DOWN, zeros=False))
    )


def test_a_head_is_quantized_where_a_target_names_it() -> None:
    """7.97 GiB; "Linear" alone is no class of vLLM's heads."""
    head = ENDS + 4 * 128_256
    assert compressed((["Linear", "re:.*lm_head"], EIGHT), ignore=[]) == by_row(32) - 2 * ENDS + head
    assert compressed((["Linear"], EIGHT), ignore=[]) == by_row(32)


def test_an_embedding_is_quantized_where_a_target_is_its_class() -> None:
    """CompressedTensorsEmbeddingWNA16Int: packed integers with scales in 16 bits."""
    packed = compressed((["Embedding"], FOUR), ignore=[])
    assert packed == PLAIN + 2 * LAYERS * LAYER - 2 * ENDS + in_groups(ENDS, zeros=False)


def test_mxfp8_has_exponents_of_8_bits() -> None:
    weights = {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}
    assert compressed((["Linear"], weights), ignore=["lm_head"]) == PLAIN + LAYERS * LAYER * 33 // 32


@pytest.mark.parametrize("key", ["+:.*down_proj.*", ".*down_proj.*"])
def test_gptq_in_other_bits_for_some_modules(key: str) -> None:
    """6.216 GiB."""
    section = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
    found = num_bytes(**section, dynamic={key: {"bits": 8}})
    assert found == PLAIN + LAYERS * (in_groups(DOWN, 8) + in_groups(LAYER - DOWN))
    assert num_bytes(**section, dynamic={r"-:.*\.mlp\..*": {}, key: {"bits": 8}}) == (
        PLAIN + LAYERS * (2 * 3 * DOWN + in_groups(LAYER - 3 * DOWN))
    )
    assert num_bytes(**section, lm_head=True) == PLAIN - 2 * ENDS + in_groups(ENDS) + LAYERS * in_groups(LAYER)


def test_auto_round_with_other_bits_for_some_modules() -> None:
    """7.980 GiB."""
    names = [f"model.layers.{layer}.mlp.{name}_proj" for layer in range(LAYERS) for name in ("gate", "up", "down")]
    section = {"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": True, "data_type": "int"}
    mlp, rest = 3 * DOWN, LAYER - 3 * DOWN
    right = PLAIN + LAYERS * (in_groups(mlp, 8) + in_groups(rest))
    assert num_bytes(**section, extra_config={name: {"bits": 8} for name in names}) == right
    assert num_bytes(**section, extra_config={r".*\.mlp\..*": {"bits": 8}}) == right
    plain = PLAIN + LAYERS * (2 * mlp + in_groups(rest))
    assert num_bytes(**section, extra_config={name: {"bits": 16, "data_type": "float"} for name in names}) == plain
    head = in_groups(ENDS, 8) - 2 * ENDS
    assert num_bytes(**section, extra_config={"lm_head": {"bits": 8}}) == PLAIN + head + LAYERS * in_groups(LAYER)


def test_auto_round_in_mxfp4_and_in_fp8_tiles() -> None:
    section = {"quant_method": "auto-round", "bits": 4, "group_size": 32, "data_type": "mx_fp", "sym": True}
    assert num_bytes(**section) == PLAIN + LAYERS * LAYER * 17 // 32
    tiles = {"quant_method": "inc", "bits": 8, "group_size": [128, 128], "data_type": "fp", "sym": True}
    assert num_bytes(**tiles) == PLAIN + LAYERS * LAYER * (1 + 4 / 128**2)


def test_awq_exempts_by_parts_of_names() -> None:
    """5.936 GiB: layers 0 and 1, and neither 10 nor 11."""
    section = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}
    kept = ["model.layers.0.", "model.layers.1."]
    assert num_bytes(**section, modules_to_not_convert=kept) == PLAIN + 2 * 2 * LAYER + 30 * in_groups(LAYER)
    assert num_bytes(**section, modules_to_not_convert=["model.layers.1"]) == (
        PLAIN + 11 * 2 * LAYER + 21 * in_groups(LAYER)
    )


def test_fp8_exempts_by_whole_names() -> None:
    section = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    tiles = int(LAYER * (1 + 4 / 128**2))
    assert num_bytes(**section, modules_to_not_convert=["lm_head", "mlp", "model.layers.0"]) == PLAIN + LAYERS * tiles
    one = 4096 * 4096
    assert num_bytes(**section, modules_to_not_convert=["model.layers.0.self_attn.o_proj"]) == (
        PLAIN + LAYERS * tiles + 2 * one - int(one * (1 + 4 / 128**2))
    )


def _nvfp4(weights: int, matrices: int) -> int:
    return weights * 9 // 16 + 4 * matrices


def test_modelopt_quantizes_a_head_that_nothing_exempts() -> None:
    section = {"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4"}
    layers = LAYERS * _nvfp4(LAYER, 7)
    assert num_bytes(**section, ignore=["lm_head"]) == PLAIN + layers
    assert num_bytes(**section, ignore=["model.visual*"]) == PLAIN - 2 * ENDS + _nvfp4(ENDS, 1) + layers


def test_modelopt_in_a_format_for_each_module() -> None:
    down = {f"model.layers.{layer}.mlp.down_proj": {"quant_algo": "FP8"} for layer in range(LAYERS)}
    head = {"lm_head": {"quant_algo": "W4A16_NVFP4", "group_size": 16}}
    found = num_bytes(quant_method="modelopt", quant_algo="MIXED_PRECISION", quantized_layers=down | head)
    assert found == PLAIN - 2 * ENDS + _nvfp4(ENDS, 1) + LAYERS * (2 * (LAYER - DOWN) + DOWN + 8)


@pytest.mark.parametrize(
    ("name", "gib"),
    [("qwen3.6-27b-nvfp4", 0.666), ("qwen3.6-35b-a3b-nvfp4", 0.266)],
)
def test_published_heads_in_4_bits(name: str, gib: float) -> None:
    """Both name their head in ``quantized_layers``; start-ups loaded 20.57 and 21.93 GiB, towers included."""
    parts = {part.kind: part for part in size_weights(resolve_model(name), "bfloat16").components}
    assert parts["head"].format == "nvfp4 4-bit, group 16"
    assert parts["head"].num_bytes / 2**30 == pytest.approx(gib, abs=0.001)


@pytest.mark.parametrize("as_directory", [True, False])
def test_the_file_beside_a_config(tmp_path: Path, as_directory: bool) -> None:
    """hf_quant_config.json, which ModelOpt wrote until 0.29, says format and KV cache where config.json does not."""
    profile = find_profile("llama-3.1-8b")
    assert profile is not None
    (tmp_path / "config.json").write_text(json.dumps(profile["config"]))
    quantization = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    beside = {"producer": {"name": "modelopt", "version": "0.29.0"}, "quantization": quantization}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside))
    spec = resolve_model(str(tmp_path if as_directory else tmp_path / "config.json"))
    assert size_weights(spec, "bfloat16").total_bytes == PLAIN + LAYERS * (LAYER + 7 * 8)
    assert spec.quantization is not None and spec.quantization.kv_cache_dtype == "fp8"
    (tmp_path / "hf_quant_config.json").write_text("[]")
    with pytest.raises(KvplanError, match=r"hf_quant_config.json is not a JSON object"):
        resolve_model(str(tmp_path))


def test_the_file_beside_a_config_gives_its_list_of_layers(tmp_path: Path) -> None:
    """Some configs say mixed precision and leave the list to the file."""
    profile = find_profile("llama-3.1-8b")
    assert profile is not None
    section = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}
    (tmp_path / "config.json").write_text(json.dumps({**profile["config"], "quantization_config": section}))
    layers = {"model.layers.0.mlp.down_proj": {"quant_algo": "FP8"}}
    quantization = {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": quantization}))
    spec = resolve_model(str(tmp_path))
    assert size_weights(spec, "bfloat16").total_bytes == PLAIN + 2 * LAYERS * LAYER - DOWN + 8


_FP8_OF_QUARK = {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": False}
_MXFP4_OF_QUARK = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}


def _quark(weight: dict[str, Any], inputs: dict[str, Any] | None = None, **others: Any) -> int:
    given = {"weight": weight, "input_tensors": inputs, "output_tensors": None, "bias": None}
    section = {"quant_method": "quark", "exclude": ["lm_head"], "layer_quant_config": {}, **others}
    return num_bytes(**section, global_quant_config=given)


def test_quark() -> None:
    """8.46 GiB in fp8, with a scale for each matrix and one for its inputs."""
    assert _quark(_FP8_OF_QUARK, _FP8_OF_QUARK) == PLAIN + LAYERS * (LAYER + 7 * 8)
    assert _quark(_MXFP4_OF_QUARK) == PLAIN + LAYERS * LAYER * 17 // 32
    named = {"*down_proj": {"weight": _FP8_OF_QUARK, "input_tensors": None}}
    assert _quark(_MXFP4_OF_QUARK, layer_quant_config=named) == (
        PLAIN + LAYERS * ((LAYER - DOWN) * 17 // 32 + DOWN + 4)
    )
    assert _quark(_MXFP4_OF_QUARK, exclude=["re:.*mlp.*"]) == (
        PLAIN + LAYERS * ((LAYER - 3 * DOWN) * 17 // 32 + 2 * 3 * DOWN)
    )


def _torchao(kind: str, **values: Any) -> dict[str, Any]:
    return {"_type": kind, "_version": 1, "_data": values}


def test_torchao() -> None:
    def sized(default: dict[str, Any], **others: Any) -> int:
        return num_bytes(quant_method="torchao", quant_type={"default": default}, **others)

    four = in_groups(LAYER, zeros=False) + 2 * LAYER // 128  # a scale and a zero point in 16 bits
    assert sized(_torchao("Int4WeightOnlyConfig", group_size=128)) == PLAIN + LAYERS * four
    rows = _torchao("Float8DynamicActivationFloat8WeightConfig", granularity=[_torchao("PerRow"), _torchao("PerRow")])
    assert sized(rows, modules_to_not_convert=["layers.1", "lm_head"]) == by_row(31)
    listed = {"re:.*down_proj": _torchao("Int8WeightOnlyConfig"), "_default": None, "lm_head": None}
    by_module = _torchao("ModuleFqnToConfig", module_fqn_to_config=listed)
    assert sized(by_module) == PLAIN + LAYERS * (2 * (LAYER - DOWN) + DOWN + 2 * 4096)
    with pytest.raises(KvplanError, match=r"Unknown torchao format 'Uint3Config'"):
        sized(_torchao("Uint3Config"))


@pytest.mark.parametrize(
    ("alias", "method"),
    [
        *((alias, "awq") for alias in ("auto_awq", "awq_marlin")),
        *((alias, "gptq") for alias in ("auto_gptq", "gptq_marlin")),
        *((alias, "auto-round") for alias in ("inc", "intel/auto-round")),
    ],
)
def test_other_names_of_a_loader(alias: str, method: str) -> None:
    section = {"bits": 4, "group_size": 128, "sym": True}
    assert num_bytes(quant_method=alias, **section) == num_bytes(quant_method=method, **section)


@pytest.mark.parametrize(
    ("section", "stored"),
    [
        ({"quant_method": "modelopt_mxfp8", "quant_algo": "MXFP8", "ignore": ["lm_head"]}, LAYER * 33 // 32),
        ({"quant_method": "mxfp8", "ignored_layers": ["lm_head"]}, LAYER * 33 // 32),
        ({"quant_method": "modelopt_fp4", "quant_algo": "NVFP4", "ignore": ["lm_head"]}, LAYER * 9 // 16 + 7 * 8),
        ({"quant_method": "fp_quant", "forward_dtype": "mxfp4", "modules_to_not_convert": []}, LAYER * 17 // 32),
        ({"quant_method": "experts_int8"}, 2 * LAYER),
        ({"quant_method": "gpt_oss_mxfp4"}, 2 * LAYER),
    ],
)
def test_rare_formats(section: dict[str, Any], stored: int) -> None:
    """A dense model has no experts for the last two to pack."""
    assert num_bytes(**section) == PLAIN + LAYERS * stored


def test_an_unknown_format_is_refused_by_name() -> None:
    with pytest.raises(KvplanError, match=r"Unknown weight format 'humming'"):
        llama(quant_method="humming")


def test_a_towers_layers_are_not_the_language_models() -> None:
    """``vision_tower.encoder.layers.0`` exempts no layer of the language model."""
    kept = ["model.vision_tower.encoder.layers.0.self_attn.q_proj", "visual.layers.0.mlp.down_proj"]
    assert compressed((["Linear"], EIGHT), ignore=kept) == by_row(32)


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("model.language_model.layers.3.mlp.up_proj", "layers.3.mlp.up_proj"),
        ("language_model.model.layers.3.mlp", "layers.3.mlp"),
        ("backbone.layers.3.mixer.in_proj", "layers.3.mixer.in_proj"),
        ("transformer.h.3.attn.c_attn", "layers.3.attn.c_attn"),
        ("transformer.encoder.layers.3.mlp", "layers.3.mlp"),
        ("model.decoder.layers.3.fc1", "layers.3.fc1"),
        ("model.encoder.layers.3.fc1", "model.encoder.layers.3.fc1"),
        ("visual.blocks.3.attn.qkv", "visual.blocks.3.attn.qkv"),
        ("language_model.lm_head", "lm_head"),
        ("self_attn", "self_attn"),
    ],
)
def test_names_without_the_path_to_the_layers(name: str, plain: str) -> None:
    assert plain_name(name) == plain


def _notes(**section: Any) -> list[str]:
    return [note for note in llama(**section).assumptions if "vLLM 0.33" in note or "exempts" in note]


def test_what_vllm_would_refuse_is_a_note() -> None:
    groups = {"a": {"targets": ["re:.*q_proj$"], "weights": EIGHT}, "b": {"targets": ["Linear"], "weights": FOUR}}
    (note,) = _notes(quant_method="gptq", bits=4, group_size=128, dynamic={r"+:.*\.q_proj": {"bits": 8}})
    merged = "model.layers.0.self_attn.qkv_proj"
    assert note == f"vLLM 0.33 refuses this checkpoint: it merges the parts of {merged}, whose formats differ."
    (note,) = _notes(quant_method="compressed-tensors", config_groups=groups, ignore=[r"re:.*\.up_proj"])
    assert merged in note
    assert _notes(quant_method="gptq", bits=4, group_size=128) == []


def test_what_the_config_leaves_open_is_a_note() -> None:
    (note,) = _notes(quant_method="modelopt", quant_algo="NVFP4")
    assert note == "The head counts as quantized: no entry of the list exempts it, and vLLM 0.33 loads it so."
    (note,) = _notes(quant_method="fp8", modules_to_not_convert=["lm_head", "self_attn", "mlp"])
    assert (
        note == "'self_attn' and 1 more in the quantization_config: no effect, as vLLM 0.33 compares whole names here."
    )
    profile = find_profile("gemma-3-4b")
    assert profile is not None
    groups = {"group_0": {"targets": ["Linear"], "weights": EIGHT}}
    for ignore, is_open in ((["lm_head"], True), (["lm_head", "re:.*vision_tower.*"], False)):
        section = {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ignore}
        spec = read_config({**profile["config"], "quantization_config": section}, model_id="with a tower")
        assert any("exempts no module of the tower" in note for note in spec.assumptions) is is_open


def test_blocks_that_auto_round_names_in_either_spelling() -> None:
    """Of a wrapped model: the checkpoint's path to its layers, an older one, vLLM's; the tower's names none of them."""
    profile = find_profile("gemma-3-4b")
    assert profile is not None
    section = {"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": True}
    sizes = []
    for blocks in ("model.language_model.layers", "language_model.model.layers", "model.layers", "vision_tower.layers"):
        config = {**profile["config"], "quantization_config": {**section, "block_name_to_quantize": blocks}}
        sizes.append(size_weights(read_config(config, model_id="wrapped"), "bfloat16").total_bytes)
    assert sizes[0] == sizes[1] == sizes[2] < sizes[3]


def test_the_main_format_is_the_configs_own() -> None:
    """Exceptions to it do not decide what the model is called."""
    spec = llama(quant_method="gptq", bits=4, group_size=128, dynamic={"+:.*down_proj": {"bits": 8}})
    assert spec.quantization is not None
    assert (spec.quantization.bits, [each.bits for each in spec.quantization.formats]) == (4, [8, 4])
    groups = {"a": {"targets": ["Linear"], "weights": FOUR}, "b": {"targets": ["re:.*down_proj"], "weights": EIGHT}}
    spec = llama(quant_method="compressed-tensors", config_groups=groups)
    assert spec.quantization is not None and spec.quantization.bits == 4
