"""What vLLM's profile run feeds a vision encoder: how many of the largest images, their pixels, patches and tokens.

The encoder's budget is the larger of ``max_num_batched_tokens`` and the tokens of the largest image; as many images
are profiled as it holds, and as all sequences may have (vllm/v1/worker/utils.py, later
vllm/multimodal/encoder_budget.py, MultiModalBudget, read in 0.12.0 to 0.33.0). Sizes of the largest image are those of
each family's processor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kvplan.catalog.releases.vllm import VllmRelease
from kvplan.catalog.spec import ModelSpec
from kvplan.estimate.vllm.modalities import NO_LIMIT, as_limited, modality_limits
from kvplan.settings import FilledSettings, ServingSettings

_CHANNELS = 3
_RESIDUAL_WIDTHS = 2
_FLOAT_ROTARY_WIDTHS = 14
"""Hidden widths alive in a vision block with rotary positions in float32, beside residual and norm: qkv (3), q, k, v as
the kernel wants them (3), q and k in float32 before and after the rotation (4 x 2)."""
_ROTARY_WIDTHS = 8
"""The same in the model's dtype: qkv (3), q and k before and after the rotation (2 x 2), the attention's output (1).
The block's output (1) is as wide on every rank (vllm/model_executor/models/qwen2_5_vl.py, Qwen2_5_VisionAttention)."""

_GATED_HELD_WIDTHS = 3
"""Hidden widths alive in a gated MLP beside two: the norm's output and sum where it leaves its inputs, and what the
MLP returns (Qwen2_5_VisionBlock)."""
_GATED_INNER_WIDTHS = 3
"""Inner widths alive there: gate and up, and their product (Qwen2_5_VisionMLP)."""


@dataclass(frozen=True, slots=True)
class ImageSize:
    """One image of the largest size. ``pixels`` counts values, ``patches`` rows inside the encoder.

    Per patch there are alive two hidden widths and ``held_width`` elements, whole on every rank, and ``inner_width``
    elements, divided over them. ``for_each_sequence``: one image for every sequence, whatever the budget of tokens.
    """

    pixels: int
    patches: int
    tokens: int
    hidden_size: int
    inner_width: int
    deepstack_outputs: int = 0
    held_width: int = 0
    for_each_sequence: bool = False
    turns_as_release: bool = False
    """Queries and keys are turned by the release's own function, in float32 or not."""
    video_items: int = 1
    """How many such images' pixels, patches and tokens the longest video has that releases with long videos profile."""
    gated_width: int = 0
    """Inner width of a gated MLP behind a norm that adds: wider than the attention where norms leave their inputs."""


@dataclass(frozen=True, slots=True)
class VisionProfile:
    """The encoder's dummy batch: ``peak_width`` elements are alive per patch at the widest point of the encoder."""

    num_items: int
    pixels_per_item: int
    patches_per_item: int
    tokens_per_item: int
    peak_width: int
    deepstack_outputs: int

    def output_width(self, hidden_size: int) -> int:
        """Elements per output token: the decoder's hidden size, and once more for each level that is fed deeper in."""
        return hidden_size * (1 + self.deepstack_outputs)


def vision_profile(spec: ModelSpec, settings: FilledSettings, release: VllmRelease) -> VisionProfile | None:
    """The encoder's part of the profile run; None for models without one, or whose image sizes are unknown."""
    config = spec.raw_config
    section = config.get("vision_config")
    if not isinstance(section, Mapping) or settings.language_model_only or settings.skip_mm_profiling:
        return None
    reader = _READERS.get(str(config.get("model_type", "")))
    image = reader(config, section) if reader is not None else None
    if image is None or image.tokens < 1:
        return None
    limits = modality_limits(settings.limit_mm_per_prompt)
    most, videos = limits.get("image", NO_LIMIT), limits.get("video", NO_LIMIT)
    if not most and not videos:
        return None
    if release.profiles_long_videos and videos:
        longest = max(min(image.video_items, settings.max_model_len // image.tokens), 1)
        image, most = _repeated(image, longest), videos if longest > 1 else most
    num_items = settings.max_num_seqs
    if not image.for_each_sequence:
        budget = max(settings.max_num_batched_tokens, image.tokens)
        in_prompt = max(min(most, settings.max_model_len // image.tokens), 1)
        num_items = max(min(budget // image.tokens, num_items * in_prompt), 1)
    if image.turns_as_release and not release.float_vision_rotary:
        held = image.held_width + image.hidden_size
        image = replace(image, inner_width=_ROTARY_WIDTHS * image.hidden_size, held_width=held)
    width = _width(image, settings.tensor_parallel_size)
    if image.gated_width and release.norms_out_of_place and not settings.enforce_eager:
        held, inner = _GATED_HELD_WIDTHS * image.hidden_size, _GATED_INNER_WIDTHS * image.gated_width
        gated = replace(image, held_width=held, inner_width=inner)
        width = max(width, _width(gated, settings.tensor_parallel_size))
    return VisionProfile(num_items, image.pixels, image.patches, image.tokens, width, image.deepstack_outputs)


_GEMMA4_VIDEO_TOKENS = 32 * (70 + 2 + 6)
"""Of 32 frames, with marks and a time (vllm/model_executor/models/gemma4_mm.py, get_mm_max_tokens_per_item)."""


def whole_item_tokens(spec: ModelSpec, asked: ServingSettings, release: VllmRelease) -> int:
    """Tokens of the largest image or video where the model reads one in one step, whatever a prompt may have; else 0.

    Gemma 4's larger ones, whose images see both ways. Of Gemma 3 and others vLLM states no size beforehand.
    """
    text = spec.raw_config.get("text_config")
    is_gemma4 = spec.raw_config.get("model_type") in ("gemma4", "gemma4_unified")
    if not (release.steps_hold_largest_item and is_gemma4 and isinstance(text, Mapping)):
        return 0
    if text.get("use_bidirectional_attention") != "vision" or as_limited(spec, asked).language_model_only:
        return 0
    return _GEMMA4_VIDEO_TOKENS


def _width(image: ImageSize, ranks: int) -> int:
    return _RESIDUAL_WIDTHS * image.hidden_size + image.held_width + image.inner_width // ranks


def _repeated(image: ImageSize, times: int) -> ImageSize:
    pixels, patches, tokens = (times * each for each in (image.pixels, image.patches, image.tokens))
    return replace(image, pixels=pixels, patches=patches, tokens=tokens)


def _number(section: Mapping[str, Any], name: str, default: int) -> int:
    value = section.get(name, default)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else default


def _plain_width(section: Mapping[str, Any], hidden: int) -> int:
    """Either the MLP's two activations or qkv with the attention's output."""
    return max(2 * _number(section, "intermediate_size", 4 * hidden), 4 * hidden)


def _square(side: int) -> int:
    return _CHANNELS * side * side


def _gemma3(config: Mapping[str, Any], section: Mapping[str, Any]) -> ImageSize:
    side, patch = _number(section, "image_size", 896), _number(section, "patch_size", 14)
    hidden = _number(section, "hidden_size", 1152)
    tokens = _number(config, "mm_tokens_per_image", 256)
    return ImageSize(_square(side), (side // patch) ** 2, tokens, hidden, _plain_width(section, hidden))


def _pixtral(config: Mapping[str, Any], section: Mapping[str, Any]) -> ImageSize:
    side, patch = _number(section, "image_size", 1540), _number(section, "patch_size", 14)
    merge, hidden = _number(config, "spatial_merge_size", 1), _number(section, "hidden_size", 1024)
    rows = side // patch
    merged = -(-rows // merge)
    # A token for every merged patch and a break after each row.
    return ImageSize(_square(side), rows * rows, merged * (merged + 1), hidden, _plain_width(section, hidden))


def _llama4(config: Mapping[str, Any], section: Mapping[str, Any]) -> ImageSize:
    side, patch = _number(section, "image_size", 336), _number(section, "patch_size", 14)
    hidden, tiles = _number(section, "hidden_size", 1408), 17
    patches = (side // patch) ** 2
    ratio = section.get("pixel_shuffle_ratio", 0.5)
    kept = ratio * ratio if isinstance(ratio, float) else 0.25
    tokens = tiles * int(patches * kept)
    return ImageSize(tiles * _square(side), tiles * (patches + 1), tokens, hidden, _plain_width(section, hidden))


def _llava(config: Mapping[str, Any], section: Mapping[str, Any]) -> ImageSize:
    side, patch = _number(section, "image_size", 336), _number(section, "patch_size", 14)
    hidden, patches = _number(section, "hidden_size", 1024), (side // patch) ** 2
    return ImageSize(_square(side), patches + 1, patches, hidden, _plain_width(section, hidden))


def _qwen_vl(config: Mapping[str, Any], section: Mapping[str, Any]) -> ImageSize:
    """Images of any size, at most 16,384 tokens after merging 2 x 2 patches; two frames share a patch."""
    merge = _number(section, "spatial_merge_size", 2)
    patch, frames = _number(section, "patch_size", 14), _number(section, "temporal_patch_size", 2)
    hidden = _number(section, "embed_dim", 0) or _number(section, "hidden_size", 1280)
    tokens = 16384
    patches = tokens * merge * merge
    levels = section.get("deepstack_visual_indexes")
    deeper = len(levels) if isinstance(levels, list) else 0
    pixels = patches * _CHANNELS * patch * patch * frames
    # Learned positions (Qwen3-VL and later) stay until the last block.
    held = hidden if "num_position_embeddings" in section else 0
    inner = _FLOAT_ROTARY_WIDTHS * hidden
    return ImageSize(pixels, patches, tokens, hidden, inner, deeper, held, turns_as_release=True)


def _qwen2_vl(config: Mapping[str, Any], section: Mapping[str, Any]) -> ImageSize:
    """A video has at most 14 frames, and two frames are as many tokens as an image (qwen2_vl.py)."""
    return replace(_qwen_vl(config, section), video_items=7)


def _qwen2_5_vl(config: Mapping[str, Any], section: Mapping[str, Any]) -> ImageSize:
    return replace(_qwen2_vl(config, section), gated_width=_number(section, "intermediate_size", 3420))


def _dots(config: Mapping[str, Any], section: Mapping[str, Any]) -> ImageSize:
    """At most 11,289,600 pixels, in patches of 14 x 14, merged 2 x 2."""
    merge, patch = _number(section, "spatial_merge_size", 2), _number(section, "patch_size", 14)
    hidden = _number(section, "embed_dim", 1536)
    patches = 11_289_600 // (patch * patch)
    return ImageSize(
        patches * _CHANNELS * patch * patch, patches, patches // (merge * merge), hidden, _FLOAT_ROTARY_WIDTHS * hidden
    )


def _mllama(config: Mapping[str, Any], section: Mapping[str, Any]) -> ImageSize:
    """Llama 3.2 Vision, which only the first engine ran, with one image of all tiles for each sequence.

    The widest point is the MLP of the encoder's second, global part (vllm/model_executor/models/mllama.py, 0.6.2 on).
    Still held there, in hidden widths: the patches before any embedding (1), the first part's states and its output
    (n and 1), their stack (n), and inside the layer its caller's and its own input (2); and a mask of every patch of
    an image against every other. Pixels are float32, as given and padded to equally many tiles (4 x 2 bytes).
    """
    side, patch = _number(section, "image_size", 560), _number(section, "patch_size", 14)
    hidden, tiles = _number(section, "hidden_size", 1280), _number(section, "max_num_tiles", 4)
    in_tile = (side // patch) ** 2 + 1
    patches = tiles * -(-in_tile // 8) * 8
    states = section.get("intermediate_layers_indices")
    kept = len(states) if isinstance(states, list) else _number(section, "vision_output_dim", 6 * hidden) // hidden - 1
    return ImageSize(
        pixels=4 * tiles * _square(side),
        patches=patches,
        tokens=tiles * in_tile,
        hidden_size=hidden,
        inner_width=2 * _number(section, "intermediate_size", 4 * hidden),
        held_width=(2 * kept + 4) * hidden + patches,
        for_each_sequence=True,
    )


_READERS: dict[str, Callable[[Mapping[str, Any], Mapping[str, Any]], ImageSize]] = {
    "gemma3": _gemma3,
    "mistral3": _pixtral,
    "llava": _llava,
    "mllama": _mllama,
    "llama4": _llama4,
    "qwen2_vl": _qwen2_vl,
    "qwen2_5_vl": _qwen2_5_vl,
    "qwen3_vl": _qwen_vl,
    "qwen3_vl_moe": _qwen_vl,
    "qwen3_5": _qwen_vl,
    "qwen3_5_moe": _qwen_vl,
    "qwen4_exp": _qwen_vl,
    "dots_ocr": _dots,
}
