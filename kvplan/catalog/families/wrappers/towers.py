"""Vision and audio towers: their parameters, counted apart from the language model's; they cache nothing.

An unknown tower is named without a count, and outputs say so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvplan.catalog.config_view import ConfigView
from kvplan.catalog.families.wrappers.more_towers import blip2_modules, vibevoice_modules
from kvplan.catalog.spec import ExtraModule

_LAYER_KEYS = ("num_hidden_layers", "depth")


@dataclass(frozen=True, slots=True)
class TowerCount:
    """Parameters of an encoder and of what joins it to the language model."""

    tower: int
    projector: int
    num_layers: int


def _attention(hidden: int, *, bias: bool) -> int:
    return 4 * hidden * hidden + (4 * hidden if bias else 0)


def _mlp(hidden: int, inner: int, *, bias: bool, gated: bool = False) -> int:
    matrices = 3 if gated else 2
    return matrices * hidden * inner + ((matrices - 1) * inner + hidden if bias else 0)


def _linear(inner: int, out: int, *, bias: bool) -> int:
    return inner * out + (out if bias else 0)


def _patches(view: ConfigView, *, image: int, patch: int) -> int:
    return (view.integer("image_size", default=image) // view.integer("patch_size", default=patch)) ** 2


def _clip(vision: ConfigView, outer: ConfigView, text_hidden: int) -> TowerCount:
    """LLaVA's CLIP encoder and its two-layer projector."""
    hidden = vision.integer("hidden_size", default=1024)
    inner, layers = vision.integer("intermediate_size", default=4096), vision.layers(*_LAYER_KEYS, default=24)
    patch = vision.integer("patch_size", default=14)
    embedding = hidden + 3 * patch**2 * hidden + (_patches(vision, image=336, patch=14) + 1) * hidden
    layer = _attention(hidden, bias=True) + _mlp(hidden, inner, bias=True) + 4 * hidden
    bias = outer.flag("multimodal_projector_bias", default=True)
    projector = _linear(hidden, text_hidden, bias=bias) + _linear(text_hidden, text_hidden, bias=bias)
    return TowerCount(embedding + layers * layer + 4 * hidden, projector, layers)


def _siglip(vision: ConfigView, outer: ConfigView, text_hidden: int) -> TowerCount:
    """Gemma 3's SigLIP encoder; the projector is one matrix and a norm."""
    hidden = vision.integer("hidden_size", default=1152)
    inner, layers = vision.integer("intermediate_size", default=4304), vision.layers(*_LAYER_KEYS, default=27)
    patch = vision.integer("patch_size", default=14)
    embedding = 3 * patch**2 * hidden + hidden + _patches(vision, image=896, patch=14) * hidden
    layer = _attention(hidden, bias=True) + _mlp(hidden, inner, bias=True) + 4 * hidden
    return TowerCount(embedding + layers * layer + 2 * hidden, hidden * text_hidden + hidden, layers)


def _pixtral(vision: ConfigView, outer: ConfigView, text_hidden: int) -> TowerCount:
    """Mistral 3's Pixtral encoder: no biases, gated; its projector merges patches."""
    hidden = vision.integer("hidden_size", default=1024)
    inner, layers = vision.integer("intermediate_size", default=4096), vision.layers(*_LAYER_KEYS, default=24)
    layer = _attention(hidden, bias=False) + _mlp(hidden, inner, bias=False, gated=True) + 2 * hidden
    tower = 3 * vision.integer("patch_size", default=16) ** 2 * hidden + hidden + layers * layer
    bias = outer.flag("multimodal_projector_bias", default=False)
    projector = _linear(hidden, text_hidden, bias=bias) + _linear(text_hidden, text_hidden, bias=bias)
    if outer.has("spatial_merge_size"):
        merged = outer.integer("spatial_merge_size") ** 2
        projector += hidden + merged * hidden * hidden
    return TowerCount(tower, projector, layers)


def _qwen2_vl(vision: ConfigView, outer: ConfigView, text_hidden: int) -> TowerCount:
    hidden = vision.integer("embed_dim", default=1280)
    layers = vision.layers("depth", default=32)
    inner = int(hidden * vision.number("mlp_ratio", default=4.0))
    layer = _attention(hidden, bias=True) + _mlp(hidden, inner, bias=True) + 4 * hidden
    return _merged(vision, hidden, layers, layer, out=text_hidden, norm=2 * hidden, patch_bias=False)


def _qwen2_5_vl(vision: ConfigView, outer: ConfigView, text_hidden: int) -> TowerCount:
    hidden = vision.integer("hidden_size", default=1280)
    layers = vision.layers("depth", default=32)
    inner = vision.integer("intermediate_size", default=3420)
    layer = _attention(hidden, bias=True) + _mlp(hidden, inner, bias=True, gated=True) + 2 * hidden
    return _merged(vision, hidden, layers, layer, out=text_hidden, norm=hidden, patch_bias=False)


def _merged(
    vision: ConfigView, hidden: int, layers: int, layer: int, *, out: int, norm: int, patch_bias: bool, size: int = 14
) -> TowerCount:
    """Qwen's frame: 3-D patches, the layers, and a merger of neighbouring patches. ``size``: of a patch by default."""
    patch, frames = vision.integer("patch_size", "spatial_patch_size", default=size), 2
    frames = vision.integer("temporal_patch_size", default=frames)
    embedding = 3 * frames * patch**2 * hidden + (hidden if patch_bias else 0)
    wide = hidden * vision.integer("spatial_merge_size", default=2) ** 2
    merger = norm + _linear(wide, wide, bias=True) + _linear(wide, out, bias=True)
    return TowerCount(embedding + layers * layer + merger, 0, layers)


def _qwen3_vl(vision: ConfigView, outer: ConfigView, text_hidden: int) -> TowerCount:
    """Qwen3-VL, Qwen 3.5 and 4: learned positions, and one more merger for every deepstack layer."""
    hidden = vision.integer("hidden_size", default=1152)
    layers = vision.layers("depth", default=27)
    inner = vision.integer("intermediate_size", default=4304)
    layer = _attention(hidden, bias=True) + _mlp(hidden, inner, bias=True) + 4 * hidden
    out = vision.integer("out_hidden_size", default=text_hidden)
    found = _merged(vision, hidden, layers, layer, out=out, norm=2 * hidden, patch_bias=True, size=16)
    wide = hidden * vision.integer("spatial_merge_size", default=2) ** 2
    deepstack = 2 * wide + _linear(wide, wide, bias=True) + _linear(wide, out, bias=True)
    count = len(vision.items("deepstack_visual_indexes") or [])
    positions = vision.integer("num_position_embeddings", default=2304) * hidden
    return TowerCount(found.tower + positions + count * deepstack, 0, layers)


def _llama4(vision: ConfigView, outer: ConfigView, text_hidden: int) -> TowerCount:
    hidden = vision.integer("hidden_size", default=1408)
    inner, layers = vision.integer("intermediate_size", default=5632), vision.layers(*_LAYER_KEYS, default=34)
    patch = vision.integer("patch_size", default=14)
    embedding = 3 * patch**2 * hidden + hidden + (_patches(vision, image=336, patch=14) + 1) * hidden + 4 * hidden
    layer = _attention(hidden, bias=True) + _mlp(hidden, inner, bias=True) + 4 * hidden
    middle, out = (
        vision.integer("projector_input_dim", default=4096),
        vision.integer("projector_output_dim", default=4096),
    )
    adapter = inner * middle + out * out
    projector = vision.integer("vision_output_dim", default=out) * text_hidden
    return TowerCount(embedding + layers * layer + adapter, projector, layers)


def _gemma4(vision: ConfigView, outer: ConfigView, text_hidden: int) -> TowerCount:
    """Gemma 4's encoder: two tables of positions, gated, four norms per layer, norms of queries and keys."""
    hidden = vision.integer("hidden_size", default=768)
    inner, layers = vision.integer("intermediate_size", default=3072), vision.layers(*_LAYER_KEYS, default=16)
    heads, head = vision.integer("num_attention_heads", default=12), vision.integer("head_dim", default=64)
    kv_heads = vision.integer("num_key_value_heads", default=heads)
    positions = 2 * vision.integer("position_embedding_size", default=10240) * hidden
    embedding = 3 * vision.integer("patch_size", default=16) ** 2 * hidden + positions
    width = 2 * hidden * head * (heads + kv_heads)
    layer = width + _mlp(hidden, inner, bias=False, gated=True) + 4 * hidden + 2 * head
    return TowerCount(embedding + layers * layer, hidden * text_hidden, layers)


def _mllama(vision: ConfigView, outer: ConfigView, text_hidden: int) -> TowerCount:
    """Llama 3.2 Vision: a local and a gated global encoder, tables for tiles and aspect ratios."""
    hidden = vision.integer("hidden_size", default=1280)
    inner, layers = vision.integer("intermediate_size", default=5120), vision.layers(*_LAYER_KEYS, default=32)
    more = vision.layers("num_global_layers", default=8)
    tiles, patch = vision.integer("max_num_tiles", default=4), vision.integer("patch_size", default=14)
    ratios = len(vision.items("supported_aspect_ratios") or [0] * 8) + 1
    patches = _patches(vision, image=448, patch=14) + 1
    layer = _attention(hidden, bias=False) + _mlp(hidden, inner, bias=True) + 4 * hidden
    embedding = 3 * patch**2 * hidden + hidden + patches * hidden + 4 * hidden + 1
    embedding += ratios * tiles * patches * hidden + 2 * (ratios * tiles * hidden + 1)
    projector = _linear(vision.integer("vision_output_dim", default=7680), text_hidden, bias=True)
    return TowerCount(embedding + layers * layer + more * (layer + 2), projector, layers + more)


def _dots(vision: ConfigView, outer: ConfigView, text_hidden: int) -> TowerCount:
    """dots.ocr's encoder: no biases in its layers, gated; a merger of 2 x 2 patches."""
    hidden = vision.integer("embed_dim", default=1536)
    inner, layers = vision.integer("intermediate_size", default=4224), vision.layers(*_LAYER_KEYS, default=42)
    bias = vision.flag("use_bias", default=False)
    layer = _attention(hidden, bias=bias) + _mlp(hidden, inner, bias=bias, gated=True) + 2 * hidden
    embedding = 3 * vision.integer("patch_size", default=14) ** 2 * hidden + 2 * hidden
    wide = hidden * vision.integer("spatial_merge_size", default=2) ** 2
    merger = 2 * hidden + _linear(wide, wide, bias=True) + _linear(wide, text_hidden, bias=True)
    return TowerCount(embedding + layers * layer + hidden + merger, 0, layers)


def _glm5_next(vision: ConfigView, outer: ConfigView, text_hidden: int) -> TowerCount:
    """GLM 5.3 Flash's encoder: gated, norms of queries and keys; a convolution merges patches before a gated merger."""
    hidden, heads = vision.integer("hidden_size", default=1024), vision.integer("num_heads", default=16)
    inner, layers = vision.integer("intermediate_size", default=4096), vision.layers(*_LAYER_KEYS, default=24)
    norms = 2 * hidden + 2 * (hidden // heads)
    layer = _attention(hidden, bias=True) + _mlp(hidden, inner, bias=True, gated=True) + norms
    out, wide = (
        vision.integer("out_hidden_size", default=1536),
        vision.integer("projection_intermediate_size", default=10240),
    )
    merger = _glm_merger(vision, hidden, out, wide)
    return TowerCount(_glm_patches(vision, hidden) + layers * layer + hidden + merger, 0, layers)


def _glm4v(vision: ConfigView, outer: ConfigView, text_hidden: int) -> TowerCount:
    """GLM-4V's encoder: its MLPs are as wide as what it hands on, its merger as ``intermediate_size`` says."""
    hidden, out = vision.integer("hidden_size", default=1536), vision.integer("out_hidden_size", default=4096)
    layers = vision.layers("depth", default=24)
    bias = vision.flag("attention_bias", default=False)
    attention = 3 * _linear(hidden, hidden, bias=bias) + hidden * hidden
    layer = attention + _mlp(hidden, out, bias=False, gated=True) + 2 * hidden
    places = _patches(vision, image=336, patch=14) * hidden
    merger = _glm_merger(vision, hidden, out, vision.integer("intermediate_size", default=13696))
    return TowerCount(_glm_patches(vision, hidden) + places + layers * layer + 2 * hidden + merger, 0, layers)


def _glm_ocr(vision: ConfigView, outer: ConfigView, text_hidden: int) -> TowerCount:
    """GLM-OCR's encoder: norms of queries and keys, no positions, a merger as wide as out x channels."""
    hidden, heads = vision.integer("hidden_size", default=1024), vision.integer("num_heads", default=16)
    inner, layers = vision.integer("intermediate_size", default=4096), vision.layers(*_LAYER_KEYS, default=24)
    bias = vision.flag("attention_bias", default=True)
    norms = 2 * hidden + 2 * (hidden // heads)
    layer = _attention(hidden, bias=bias) + _mlp(hidden, inner, bias=bias, gated=True) + norms
    out = vision.integer("out_hidden_size", default=1536)
    merger = _glm_merger(vision, hidden, out, out * vision.integer("in_channels", default=3))
    return TowerCount(_glm_patches(vision, hidden) + layers * layer + hidden + merger, 0, layers)


def _glm_patches(vision: ConfigView, hidden: int) -> int:
    patch, frames = vision.integer("patch_size", default=14), vision.integer("temporal_patch_size", default=2)
    return _linear(vision.integer("in_channels", default=3) * frames * patch**2, hidden, bias=True)


def _glm_merger(vision: ConfigView, hidden: int, out: int, wide: int) -> int:
    """A convolution that merges patches, and a gated merger."""
    merging = _linear(hidden * vision.integer("spatial_merge_size", default=2) ** 2, out, bias=True)
    return merging + out * out + 2 * out + _mlp(out, wide, bias=False, gated=True)


def _phi3_vision(vision: ConfigView, outer: ConfigView, text_hidden: int) -> TowerCount:
    """Phi-3 vision: LLaVA's CLIP encoder, a projector of 2 x 2 patches, and two learned separators."""
    found = _clip(vision, outer, 1024)
    wide = 4 * 1024
    projector = _linear(wide, text_hidden, bias=True) + _linear(text_hidden, text_hidden, bias=True)
    return TowerCount(found.tower, projector + 2 * wide, found.num_layers)


def _gemma4_audio(audio: ConfigView, text_hidden: int) -> TowerCount:
    """Gemma 4's conformer: two MLPs, attention with relative positions and a gated convolution in each layer.

    Gemma4AudioModel of transformers, which vLLM builds (vllm/model_executor/models/gemma4_mm.py).
    """
    hidden, heads = audio.integer("hidden_size", default=1024), audio.integer("num_attention_heads", default=8)
    layers, kernel = audio.layers(*_LAYER_KEYS, default=12), audio.integer("conv_kernel_size", default=5)
    channels = audio.integers("subsampling_conv_channels", minimum=1) or [128, 32]
    if len(channels) != 2:
        raise audio.reject("subsampling_conv_channels", "two whole numbers")
    first, second = channels
    mlp = _mlp(hidden, 4 * hidden, bias=False) + 2 * hidden
    attention = _attention(hidden, bias=False) + hidden * hidden + hidden // heads
    convolution = 3 * hidden * hidden + kernel * hidden + 2 * hidden
    start = 9 * first + first + 9 * first * second + second + first // 4 * second * hidden
    out = audio.integer("output_proj_dims", default=1536)
    tower = start + layers * (2 * mlp + attention + convolution + 3 * hidden) + _linear(hidden, out, bias=True)
    return TowerCount(tower, out * text_hidden, layers)


def _hunyuan_vl(vision: ConfigView, outer: ConfigView, text_hidden: int) -> TowerCount:
    """HunYuanVL's encoder, and the convolutions that merge patches between two norms (transformers: HunYuanVLModel)."""
    hidden = vision.integer("hidden_size", default=1152)
    inner, layers = vision.integer("intermediate_size", default=4304), vision.layers(*_LAYER_KEYS, default=27)
    patch, merge = vision.integer("patch_size", default=16), vision.integer("spatial_merge_size", default=2)
    positions = (vision.integer("max_image_size", default=2048) // patch) ** 2 + 1
    embedding = 3 * patch**2 * hidden + hidden + positions * hidden
    layer = _attention(hidden, bias=True) + _mlp(hidden, inner, bias=True) + 4 * hidden
    convolutions = _linear(merge**2 * hidden, 2 * hidden, bias=True) + _linear(2 * hidden, 4 * hidden, bias=True)
    merger = convolutions + _linear(4 * hidden, text_hidden, bias=True) + 5 * hidden + 4 * text_hidden
    return TowerCount(embedding + layers * layer + merger, 0, layers)


def _mimo(vision: ConfigView, outer: ConfigView, text_hidden: int) -> TowerCount:
    """MiMo V2.5's encoder: grouped heads, sinks but in layers that see everything, a merger without biases.

    MiMoVisionTransformer (vllm/model_executor/models/mimo_v2_omni.py).
    """
    hidden, heads = vision.integer("hidden_size", default=1280), vision.integer("num_heads", default=32)
    inner, layers = vision.integer("intermediate_size", default=4608), vision.layers("depth", default=28)
    head, head_v = vision.integer("qk_channels", default=64), vision.integer("kv_channels", default=64)
    kv_heads = vision.integer("num_key_value_heads", default=8)
    attention = _linear(hidden, heads * head + kv_heads * (head + head_v), bias=True)
    attention += _linear(heads * head_v, hidden, bias=True)
    layer = attention + _mlp(hidden, inner, bias=True, gated=True) + 2 * hidden
    everything = len(vision.items("fullatt_block_indexes") or [])
    sinks = (layers - everything) * heads if vision.flag("use_sink", default=False) else 0
    patch, frames = vision.integer("patch_size", default=16), vision.integer("temporal_patch_size", default=2)
    wide = hidden * vision.integer("spatial_merge_size", default=2) ** 2
    out = vision.integer("out_hidden_size", default=text_hidden)
    merger = hidden + wide * wide + wide * out
    return TowerCount(3 * frames * patch**2 * hidden + layers * layer + sinks + merger, 0, layers)


def _muse_glimmer(vision: ConfigView, outer: ConfigView, text_hidden: int) -> TowerCount:
    """Muse Glimmer's encoder: learned positions, norms before and behind its layers; three matrices project."""
    hidden = vision.integer("hidden_size", default=1536)
    inner, layers = vision.integer("intermediate_size", default=8960), vision.layers(*_LAYER_KEYS, default=50)
    patch, frames = vision.integer("patch_size", default=14), vision.integer("patch_temporal", default=2)
    places = vision.integer("pos_emb_height", default=32) * vision.integer("pos_emb_width", default=32)
    layer = _attention(hidden, bias=True) + _mlp(hidden, inner, bias=True) + 4 * hidden
    tower = (3 * frames * patch**2 + places + 4) * hidden + layers * layer
    merged, wide = outer.integer("out_hidden_size", default=6144), outer.integer("projector_hidden_size", default=4096)
    return TowerCount(tower, merged * wide + wide * wide + wide * text_hidden, layers)


_TOWERS: dict[str, Callable[[ConfigView, ConfigView, int], TowerCount]] = {
    "clip_vision_model": _clip,
    "siglip_vision_model": _siglip,
    "pixtral": _pixtral,
    "qwen2_vl": _qwen2_vl,
    "qwen2_5_vl": _qwen2_5_vl,
    "qwen3_vl": _qwen3_vl,
    "qwen3_vl_moe": _qwen3_vl,
    "interns1_pro": _qwen3_vl,
    "qwen3_5": _qwen3_vl,
    "qwen3_5_moe": _qwen3_vl,
    "qwen4_exp": _qwen3_vl,
    "qwen4_exp_vision": _qwen3_vl,
    "llama4_vision_model": _llama4,
    "gemma4_vision": _gemma4,
    "glm5_next": _glm5_next,
    "glm5_next_vision": _glm5_next,
    **dict.fromkeys(("glm4v", "glm4v_vision", "glm4v_moe", "glm4v_moe_vision", "glm46v"), _glm4v),
    "glm_ocr": _glm_ocr,
    "glm_ocr_vision": _glm_ocr,
    "mllama_vision_model": _mllama,
    "dots_ocr": _dots,
    "phi3_v": _phi3_vision,
    "hunyuan_vl": _hunyuan_vl,
    "hunyuan_vl_vision": _hunyuan_vl,
    "muse_glimmer": _muse_glimmer,
    "muse_glimmer_vision": _muse_glimmer,
    "mimovl": _mimo,
    "mimo_v2": _mimo,
}


_OWN_TOWERS = {"minimax_m3_vl"}
"""Wrappers that call their encoder by the name of a known one, but build it differently."""

_OWN_PROJECTORS = frozenset(
    (
        *("MiniCPMV", "MiniCPMO", "KeyeForConditionalGeneration", "KeyeVL1_5ForConditionalGeneration"),
        *("Granite4VisionForConditionalGeneration", "Eagle2_5_VLForConditionalGeneration", "HCXVisionV2ForCausalLM"),
        *("RForConditionalGeneration", "BeeForConditionalGeneration", "KananaVForConditionalGeneration"),
    )
)
"""Architectures with a known encoder and a projector that is not the one counted with it."""

_OCR_TOWERS = {
    "DeepseekOCRForCausalLM": (95_569_152 + 303_177_728, 2),
    "UnlimitedOCRForCausalLM": (95_569_152 + 303_177_728, 2),
    "DeepseekOCR2ForCausalLM": (94_979_328 + 358_256_512, 1),
}
"""Encoders of one size whatever the config says (SAM and CLIP, SAM and Qwen2), and separators as wide as the text."""

_BY_ARCHITECTURE: dict[str, Callable[[ConfigView, int], tuple[ExtraModule, ...]]] = {
    "Blip2ForConditionalGeneration": blip2_modules,
    "VibeVoiceAsrForConditionalGeneration": vibevoice_modules,
}

_VISION_SECTIONS = ("vision_config", "visual_tokenizer_config", "vit_config", "vq_config")
_AUDIO_SECTIONS = ("audio_config", "sound_config", "encoder_config", "audio_encoder_config")
_HEARING = frozenset(("MoonshotKimiaForCausalLM",))
"""Architectures with an audio tower that their config does not describe."""


def read_towers(view: ConfigView, text_hidden: int) -> tuple[ExtraModule, ...]:
    """The towers that a wrapper's config names, with their counts where the tower is known."""
    found: list[ExtraModule] = []
    architecture = (view.texts("architectures") or [""])[0]
    if architecture in _BY_ARCHITECTURE:
        return _BY_ARCHITECTURE[architecture](view, text_hidden)
    sections = [section for name in _VISION_SECTIONS if (section := view.section(name)) is not None]
    vision = sections[0] if sections else _default_vision(view)
    if architecture in _OCR_TOWERS:
        found.extend(_vision_modules(_ocr(architecture, view, text_hidden)))
    elif vision is not None:
        outer_type = view.text("model_type", default="")
        kind = vision.text("model_type", default=outer_type)
        is_own = outer_type in _OWN_TOWERS or architecture in _OWN_PROJECTORS
        reader = None if is_own else _TOWERS.get(kind) or _TOWERS.get(outer_type)
        found.extend(_vision_modules(reader(vision, view, text_hidden) if reader else None))
    if architecture in _HEARING or any(view.section(name) is not None for name in _AUDIO_SECTIONS):
        found.extend(_audio_modules(view, text_hidden))
    return tuple(found)


def _audio_modules(view: ConfigView, text_hidden: int) -> tuple[ExtraModule, ...]:
    audio = view.section("audio_config")
    if audio is None or audio.text("model_type", default="") != "gemma4_audio":
        return (ExtraModule("audio tower", "audio", None),)
    count = _gemma4_audio(audio, text_hidden)
    tower = ExtraModule("audio tower", "audio", count.tower, count.num_layers)
    return (tower, ExtraModule("audio projector", "projector", count.projector))


def _ocr(architecture: str, view: ConfigView, text_hidden: int) -> TowerCount | None:
    """DeepSeek OCR's encoders, whose outputs one matrix projects; None where the projector is another one."""
    projector = view.section("projector_config")
    if projector is None or projector.text("projector_type", default="") != "linear":
        return None
    tower, separators = _OCR_TOWERS[architecture]
    joined = _linear(projector.integer("input_dim"), text_hidden, bias=True) + separators * text_hidden
    return TowerCount(tower, joined, 36)


def _default_vision(view: ConfigView) -> ConfigView | None:
    """Towers without a ``vision_config``: Phi-3 vision never has one, copies of Llama 4's leave it out (all have the
    same tower).
    """
    if view.text("model_type", default="") == "phi3_v":
        return ConfigView({"model_type": "phi3_v"}, path="img_processor.", assumptions=view.assumptions)
    if view.text("model_type", default="") != "llama4":
        return None
    view.assume("The config has no 'vision_config': the tower is taken to be the one all Llama 4 models have.")
    return ConfigView({"model_type": "llama4_vision_model"}, path="vision_config.", assumptions=view.assumptions)


def _vision_modules(count: TowerCount | None) -> tuple[ExtraModule, ...]:
    if count is None:
        return (ExtraModule("vision tower", "vision", None),)
    tower = ExtraModule("vision tower", "vision", count.tower, count.num_layers)
    if not count.projector:
        return (tower,)
    return (tower, ExtraModule("projector", "projector", count.projector))
