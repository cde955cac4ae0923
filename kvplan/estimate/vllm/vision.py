"""What vLLM's profile run feeds a vision encoder: how many of the largest images, their pixels, patches and tokens.

The encoder's budget is the larger of ``max_num_batched_tokens`` and the tokens of the largest image; as many images
are profiled as it holds, and as all sequences may have (vllm/v1/worker/utils.py, later
vllm/multimodal/encoder_budget.py, MultiModalBudget, read in 0.12.0 to 0.33.0). Sizes of the largest image are those of
each family's processor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

from kvplan.catalog.releases.vllm import VllmRelease
from kvplan.catalog.spec import ModelSpec
from kvplan.estimate.vllm.modalities import NO_LIMIT, as_limited, modality_limits
from kvplan.paths import read_shipped
from kvplan.settings import FilledSettings, ServingSettings

ENCODERS: Final = frozenset(("vision", "audio", "encoder"))
"""Kinds of ``ExtraModule`` that a request's images and sounds go through."""

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
    frames: int = 1
    """Frames of a video, or tiles of an image."""
    scratch_bytes: int = 0
    """Bytes per patch by which the model decides how many frames it takes at once; 0 where it takes all."""
    masks_all_pairs: bool = False
    """Some releases mask the patches of all images against each other: an element for each pair."""
    video_tokens: int = 0
    """The most tokens of a video that is profiled in place of images and fills the context; 0 where there is none."""
    video_unit: int = 1
    """Tokens of a frame, or of two that share patches: a video has whole ones."""
    video_beside_image: bool = False
    """The budget is that of a video which leaves room for an image, the one that is run has the whole context."""
    alone: bool = False
    """The encoder takes one image after the other."""
    projected_width: int = 0
    """Elements per patch that a projector makes of the encoder's output, whole on every rank, before patches merge."""
    turns_as_release: bool = False
    """Queries and keys are turned by the release's own function, in float32 or not."""
    video_items: int = 1
    """How many such images' pixels, patches and tokens the longest video has that releases with long videos profile."""
    dummy_tokens: int = 0
    """What the dummy item puts out, where that is less than ``tokens``."""
    gated_width: int = 0
    """Inner width of a gated MLP behind a norm that adds: wider than the attention where norms leave their inputs."""


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
    image = _largest_item(spec, settings, limits) if most or videos else None
    if image is None:
        return None
    if image.scratch_bytes and image.frames > 1:
        most = videos
    if image.video_tokens and videos:
        image, most = _with_video(image, settings, images=bool(most)), videos
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
    if image.projected_width:  # and what its all-reduce makes of it
        copies = 2 if settings.tensor_parallel_size > 1 else 1
        width = max(width, image.hidden_size + copies * image.projected_width)
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


def _largest_item(spec: ModelSpec, settings: FilledSettings, limits: Mapping[str, int]) -> ImageSize | None:
    config = spec.raw_config
    section = config.get("vision_config")
    if not isinstance(section, Mapping) or settings.language_model_only or settings.skip_mm_profiling:
        return None
    model_type = str(config.get("model_type", ""))
    reader = _READERS.get(model_type)
    if model_type in _rows():
        return _of_row(_rows()[model_type], config, section)
    if model_type in _VIDEOS_AS_IMAGES and not limits.get("video", NO_LIMIT):
        has_audio = isinstance(config.get("audio_config"), Mapping) and limits.get("audio", NO_LIMIT)
        reader = None if has_audio else _VIDEOS_AS_IMAGES[model_type]
    image = reader(config, section) if reader is not None else None
    return None if image is None or image.tokens < 1 else image


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
        return patches * image.scratch_bytes * 10 // 32
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
    return runs and bool(towers) and str(spec.raw_config.get("model_type", "")) not in {*_READERS, *_rows()}


_GEMMA4_FRAMES, _GEMMA4_FRAME_TOKENS = 32, 70
_GEMMA4_VIDEO_TOKENS, _GEMMA4_DUMMY_TOKENS = _GEMMA4_FRAMES * (_GEMMA4_FRAME_TOKENS + 2 + 6), _GEMMA4_FRAMES * 8 * 8
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


def _square(side: int) -> int:
    return _CHANNELS * side * side


def _pixtral(config: Mapping[str, Any], section: Mapping[str, Any]) -> ImageSize:
    """Mistral 3's images, a token for every merged patch and a break after each row.

    The widest point is the MLP: gate, up and their product; whole are the patches as the convolution made them and
    normed, the block's input, what attention added, their sum and its norm (vllm/model_executor/models/pixtral.py,
    PixtralHFTransformerBlock, read in 0.22.1 to 0.33.0).
    """
    side, patch = _number(section, "image_size", 1540), _number(section, "patch_size", 14)
    merge, hidden = _number(config, "spatial_merge_size", 1), _number(section, "hidden_size", 1024)
    rows = side // patch
    merged = -(-rows // merge)
    inner = 3 * _number(section, "intermediate_size", 4 * hidden)
    return ImageSize(
        _square(side), rows * rows, merged * (merged + 1), hidden, inner, held_width=4 * hidden, masks_all_pairs=True
    )


@dataclass(frozen=True, slots=True)
class EncoderRow:
    """An encoder of equal patches, as a row of ``profiles/encoders.json`` describes it."""

    model_types: list[str]
    hidden: int
    inner: int
    patch: int
    merge: int
    widest: tuple[int, int, int]
    source: str
    prefix: str = ""
    side: int = 0
    further: int = 0
    tiles: int = 1
    patches: int = 0
    frames: int = 1
    tokens: int = 0
    video_tokens: int = 0
    video_unit: int = 1
    video_beside_image: bool = False
    video_models: tuple[str, ...] = ()
    alone: bool = False
    projects_patches: bool = False


@cache
def _rows() -> Mapping[str, EncoderRow]:
    def read(document: Mapping[str, Any]) -> dict[str, EncoderRow]:
        rows = (EncoderRow(**row) for row in document["encoders"])
        return {model_type: row for row in rows for model_type in row.model_types}

    return read_shipped("encoders.json", read)


def _of_row(row: EncoderRow, config: Mapping[str, Any], section: Mapping[str, Any]) -> ImageSize:
    hidden = _number(section, f"{row.prefix}hidden_size", row.hidden)
    inner = _number(section, f"{row.prefix}intermediate_size", row.inner)
    patch = _number(section, "patch_size", row.patch)
    patches = row.patches or row.tiles * (_number(section, "image_size", row.side) // patch) ** 2
    whole, divided, inner_divided = row.widest
    text = config.get("llm_config", config.get("text_config"))
    text = text if isinstance(text, Mapping) else {}
    takes_videos = not row.video_models or text.get("model_type") in row.video_models
    return ImageSize(
        pixels=row.frames * patches * _square(patch),
        patches=patches + row.tiles * row.further,
        tokens=row.tokens or patches // row.merge**2,
        hidden_size=hidden,
        inner_width=divided * hidden + inner_divided * inner,
        held_width=(whole - _RESIDUAL_WIDTHS) * hidden,
        video_tokens=row.video_tokens if takes_videos else 0,
        video_unit=row.video_unit,
        video_beside_image=row.video_beside_image,
        alone=row.alone,
        projected_width=_number(text, "hidden_size", 0) if row.projects_patches else 0,
    )


def _gemma4_image(config: Mapping[str, Any], section: Mapping[str, Any], tokens: int = 0, frames: int = 1) -> ImageSize:
    """One image or frame of a video, which goes through transformers' encoder, whole on every rank.

    The widest point is the MLP: gate, up and their product or, where inputs and outputs are clipped, up twice. Beside
    it are alive the encoder's and the layer's input, the residual and the norm's output, cosines and sines, and a mask
    of a byte for every pair of patches (Gemma4VisionEncoder, read in 5.10 and 5.24; counted on the class itself in
    tests/estimate/vllm/test_vllm_encoders.py).
    """
    patch, pool = _number(section, "patch_size", 16), _number(section, "pooling_kernel_size", 3)
    hidden, head = _number(section, "hidden_size", 768), _number(section, "head_dim", 64)
    tokens = tokens or _number(section, "default_output_length", 280)
    patches = frames * tokens * pool * pool
    return ImageSize(
        pixels=patches * _square(patch),
        patches=patches,
        tokens=tokens,
        hidden_size=hidden,
        inner_width=0,
        held_width=2 * hidden + 3 * _number(section, "intermediate_size", 3072) + 2 * head + patches // frames // 2,
        frames=frames,
        scratch_bytes=4 * 8 * _number(section, "position_embedding_size", 10240),
    )


def _gemma4(config: Mapping[str, Any], section: Mapping[str, Any]) -> ImageSize:
    """A video of 32 frames, larger than an image of 280 tokens and a sound of 750 (gemma4_mm.py).

    The dummy's frames are square: 24 of 25.1 patches a side are a multiple of 3, and 8 x 8 tokens are left of 70.
    """
    frame = _gemma4_image(config, section, _GEMMA4_FRAME_TOKENS, _GEMMA4_FRAMES)
    return replace(frame, tokens=_GEMMA4_VIDEO_TOKENS, dummy_tokens=_GEMMA4_DUMMY_TOKENS)


def _gemma4_unified(config: Mapping[str, Any], section: Mapping[str, Any]) -> ImageSize:
    """The same video without an encoder: frame by frame, its pixels are projected (gemma4_unified.py)."""
    side, width = _number(section, "model_patch_size", 48), _number(section, "mm_embed_dim", 3840)
    patches = _GEMMA4_FRAMES * _GEMMA4_FRAME_TOKENS
    return ImageSize(
        pixels=patches * _square(side),
        patches=patches,
        tokens=_GEMMA4_VIDEO_TOKENS,
        hidden_size=0,
        inner_width=0,
        held_width=width,
        frames=_GEMMA4_FRAMES,
        dummy_tokens=_GEMMA4_DUMMY_TOKENS,
    )


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
    "mistral3": _pixtral,
    "mllama": _mllama,
    "qwen2_vl": _qwen2_vl,
    "qwen2_5_vl": _qwen2_5_vl,
    "qwen3_vl": _qwen_vl,
    "qwen3_vl_moe": _qwen_vl,
    "qwen3_5": _qwen_vl,
    "qwen3_5_moe": _qwen_vl,
    "qwen4_exp": _qwen_vl,
    "dots_ocr": _dots,
    "gemma4": _gemma4,
    "gemma4_unified": _gemma4_unified,
}
_VIDEOS_AS_IMAGES = {"gemma4": _gemma4_image, "gemma4_unified": None}
"""Models that take a video as images of its frames, and how one image is read; None where it takes next to nothing."""
