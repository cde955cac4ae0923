"""What vLLM's profile run feeds a vision encoder: how many of the largest images, their pixels, patches and tokens.

The encoder's budget is the larger of ``max_num_batched_tokens`` and the tokens of the largest image; as many images
are profiled as it holds, and as all sequences may have (vllm/v1/worker/utils.py, later
vllm/multimodal/encoder_budget.py, MultiModalBudget, read in 0.12.0 to 0.33.0).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kvplan.catalog.releases.vllm import VllmRelease
from kvplan.catalog.spec import ModelSpec
from kvplan.estimate.dtypes import element_bytes
from kvplan.estimate.vllm.encoders import (
    ENCODERS,
    GEMMA4_VIDEO_TOKENS,
    RESIDUAL_WIDTHS,
    ImageSize,
    has_reader,
    largest_item,
)
from kvplan.estimate.vllm.modalities import NO_LIMIT, as_limited, modality_limits
from kvplan.settings import FilledSettings, ServingSettings

_ROTARY_WIDTHS = 8
"""Hidden widths alive in a vision block with rotary positions in the model's dtype, beside residual and norm: qkv (3),
q and k before and after the rotation (2 x 2), the attention's output (1). The block's output (1) is as wide on every
rank (vllm/model_executor/models/qwen2_5_vl.py, Qwen2_5_VisionAttention)."""

_GATED_HELD_WIDTHS = 3
"""Hidden widths alive in a gated MLP beside two: the norm's output and sum where it leaves its inputs, and what the
MLP returns (Qwen2_5_VisionBlock)."""
_GATED_INNER_WIDTHS = 3
"""Inner widths alive there: gate and up, and their product (Qwen2_5_VisionMLP)."""


@dataclass(frozen=True, slots=True)
class VisionProfile:
    """The encoder's dummy batch in elements: its input, what is alive inside at the widest point, what it puts out."""

    pixels: int
    inside: int
    outputs: int


def vision_profile(
    spec: ModelSpec, settings: FilledSettings, release: VllmRelease, *, weight_bytes: int = 0
) -> VisionProfile | None:
    """The encoder's part of the profile run; None for models without one, or whose image sizes are unknown.

    weight_bytes: of the rank; what they leave free decides for some models how much the encoder takes at once.
    """
    limits = modality_limits(settings.limit_mm_per_prompt)
    most, videos = limits.get("image", NO_LIMIT), limits.get("video", NO_LIMIT)
    is_run = (most or videos) and not settings.language_model_only and not settings.skip_mm_profiling
    image = largest_item(spec.raw_config, limits) if is_run else None
    if image is None:
        return None
    if image.frames > 1:
        most = videos
    if image.unfused_width and not release.fuses_pair_bias:
        image = replace(image, held_width=image.unfused_width)
    if image.class_video_tokens and not release.reads_video_processor:
        image = replace(image, video_tokens=image.class_video_tokens)
    if image.video_tokens and videos:
        image, most = _with_video(image, settings, images=bool(most)), videos
    if release.profiles_long_videos and videos:
        longest = max(min(image.video_items, settings.max_model_len // image.tokens), 1)
        image, most = _repeated(image, longest), videos if longest > 1 or image.pair_tokens else most
    num_items = settings.max_num_seqs
    if not image.for_each_sequence:
        budget = max(settings.max_num_batched_tokens, image.tokens)
        in_prompt = max(min(most, settings.max_model_len // image.tokens), 1)
        num_items = max(min(budget // image.tokens, num_items * in_prompt), 1)
    if image.turns_as_release and not release.float_vision_rotary:
        held = image.held_width + image.hidden_size
        image = replace(image, inner_width=_ROTARY_WIDTHS * image.hidden_size, held_width=held)
    width = _width(image, settings.tensor_parallel_size)
    projected = image.projected_with_ranks if settings.tensor_parallel_size > 1 else image.projected_width
    width = max(width, image.hidden_size + projected)
    if image.gated_width and release.norms_out_of_place and not settings.enforce_eager:
        held, inner = _GATED_HELD_WIDTHS * image.hidden_size, _GATED_INNER_WIDTHS * image.gated_width
        gated = replace(image, held_width=held, inner_width=inner)
        width = max(width, _width(gated, settings.tensor_parallel_size))
    patches = image.patches if image.alone else num_items * image.patches
    inside = patches * (width + (patches if image.masks_all_pairs and release.masks_image_pairs else 0))
    if image.scratch_bytes:
        free = settings.device_memory_bytes - (settings.reserved_bytes or 0) - weight_bytes
        inside = _in_batches(image, num_items * image.frames, width, free, settings, release)
    outputs = num_items * (image.dummy_tokens or image.tokens) * spec.hidden_size * (1 + image.deepstack_outputs)
    # What earlier blocks put out beside the stream is alive in the last ones (Qwen3_VisionTransformer.forward).
    inside += outputs * image.deepstack_outputs // (1 + image.deepstack_outputs)
    return VisionProfile(num_items * image.pixels, inside, outputs)


def _with_video(image: ImageSize, settings: FilledSettings, *, images: bool) -> ImageSize:
    """The video that is profiled where it is more tokens than an image: as long as the context and its limit let it.

    images: whether prompts may have some. Source: get_num_frames_with_most_features of each model of encoders.json.
    """

    def whole(tokens: int) -> int:
        return max(min(tokens, image.video_tokens) // image.video_unit, 1) * image.video_unit

    longest = settings.max_model_len
    budget = whole(longest - (image.tokens if images and image.video_beside_image else 0))
    if images and budget < image.tokens:
        return image
    run = whole(longest)
    pixels, patches = (each * run // image.tokens for each in (image.pixels, image.patches))
    return replace(image, pixels=pixels, patches=patches, tokens=budget, dummy_tokens=run, video_tokens=0)


def _in_batches(
    image: ImageSize, frames: int, width: int, free_bytes: int, settings: FilledSettings, release: VllmRelease
) -> int:
    """Elements alive where the encoder takes some of the ``frames`` at once and keeps what it made of those before.

    As many as fit half of what is free and a tenth of the GPU, by its own estimate (_encoder_chunk in
    vllm/model_executor/models/gemma4_mm.py, 0.22.1 to 0.33.0). Before, one by one, with what is estimated: positions
    as int64 and in the model's dtype, 20 of its 32 bytes (F.one_hot in transformers before 5.10).
    """
    patches = image.patches // image.frames
    if not release.encodes_frames_in_batches:
        element = element_bytes(settings.dtype)
        return patches * image.scratch_bytes * (8 + 8 + 2 * element) // (32 * element)
    budget = max(min(free_bytes // 2, settings.device_memory_bytes // 10), 0)
    at_once = min(max(budget // (patches * image.scratch_bytes), 1), frames)
    whole, rest = divmod(frames, at_once)
    last = (whole - 1) * at_once * image.hidden_size + at_once * width
    return patches * max(last, whole * at_once * image.hidden_size + rest * width if rest else 0)


def has_uncounted_encoder(
    spec: ModelSpec, settings: FilledSettings, release: VllmRelease, *, second_runner: bool
) -> bool:
    """Return whether the profile run encodes images, videos or sounds, and no reader here knows how large they are."""
    if settings.language_model_only or settings.skip_mm_profiling:
        return False
    runs = release.second_runner_encoder or not second_runner
    towers = {extra.kind for extra in spec.extras} & ENCODERS
    return runs and bool(towers) and not has_reader(spec.raw_config, modality_limits(settings.limit_mm_per_prompt))


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
    return GEMMA4_VIDEO_TOKENS


def _width(image: ImageSize, ranks: int) -> int:
    return RESIDUAL_WIDTHS * image.hidden_size + image.held_width + image.inner_width // ranks


def _repeated(image: ImageSize, times: int) -> ImageSize:
    """A video of ``times`` pairs of frames, counted as so many images."""
    run = times * (image.pair_tokens or image.tokens)
    pixels, patches = (each * run // image.tokens for each in (image.pixels, image.patches))
    dummy = run if image.pair_tokens else image.dummy_tokens
    return replace(image, pixels=pixels, patches=patches, tokens=times * image.tokens, dummy_tokens=dummy)
