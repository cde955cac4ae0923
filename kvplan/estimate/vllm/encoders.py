"""The largest image or video of each family of models that see, and what their encoders take for it.

Sizes are those of each family's processor. Encoders of equal patches are rows of ``profiles/encoders.json``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

from kvplan.estimate.vllm.modalities import NO_LIMIT, own_config
from kvplan.paths import read_shipped

ENCODERS: Final = frozenset(("vision", "audio", "encoder"))
"""Kinds of ``ExtraModule`` that a request's images and sounds go through."""

_CHANNELS = 3
RESIDUAL_WIDTHS = 2
_FLOAT_ROTARY_WIDTHS = 14
"""Hidden widths alive in a vision block with rotary positions in float32, beside residual and norm: qkv (3), q, k, v as
the kernel wants them (3), q and k in float32 before and after the rotation (4 x 2)."""


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
    unfused_width: int = 0
    """``held_width`` in releases whose attention makes a bias for every pair of patches; 0: the same."""
    masks_all_pairs: bool = False
    """Some releases mask the patches of all images against each other: an element for each pair."""
    video_tokens: int = 0
    """The most tokens of a video that is profiled in place of images and fills the context; 0 where there is none."""
    class_video_tokens: int = 0
    """The same in releases that take the limit of the processor's class, not the checkpoint's; 0: no other limit."""
    video_unit: int = 1
    """Tokens of a frame, or of two that share patches: a video has whole ones."""
    video_beside_image: bool = False
    """The budget is that of a video which leaves room for an image, the one that is run has the whole context."""
    alone: bool = False
    """The encoder takes one image after the other."""
    projected_width: int = 0
    """Elements per patch that are alive in a projector beside the encoder's output, whole on every rank."""
    projected_with_ranks: int = 0
    """The same where several ranks sum it."""
    turns_as_release: bool = False
    """Queries and keys are turned by the release's own function, in float32 or not."""
    video_items: int = 1
    """How many such images' pixels, patches and tokens the longest video has that releases with long videos profile."""
    pair_tokens: int = 0
    """Tokens that two frames of a video have after their processor; 0: as an image, by which they are counted."""
    dummy_tokens: int = 0
    """Tokens of the dummy item where they are others than ``tokens``, by which the budget counts."""
    gated_width: int = 0
    """Inner width of a gated MLP behind a norm that adds: wider than the attention where norms leave their inputs."""


def largest_item(config: Mapping[str, Any], limits: Mapping[str, int]) -> ImageSize | None:
    """Return the largest image or video of a model, where prompts may have as many as ``limits`` say; else None."""
    config = own_config(config)
    section, model_type = _section(config), str(config.get("model_type", ""))
    if section is None:
        return None
    if model_type == "gemma3n" and not limits.get("image", NO_LIMIT):  # it takes no videos
        return None
    row = _row_of(config)
    if row is not None:
        return _of_row(row, config, section)
    reader = _READERS.get(model_type)
    if model_type in _VIDEOS_AS_IMAGES and not limits.get("video", NO_LIMIT):
        # A sound of 750 tokens is larger than an image; its dummy of 512 samples takes next to nothing (gemma4_mm.py).
        reader = None if hears(config, limits) else _VIDEOS_AS_IMAGES[model_type]
    image = reader(config, section) if reader is not None else None
    return None if image is None or image.tokens < 1 else image


def _section(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What describes the encoder. Copies of Llama 4 leave it out: all have the same tower."""
    model_type = config.get("model_type")
    if model_type in _UNWRAPPED:
        return config
    section = config.get("vision_config", {} if model_type == "llama4" else None)
    return section if isinstance(section, Mapping) else None


def hears(config: Mapping[str, Any], limits: Mapping[str, int]) -> bool:
    """Return whether prompts of a model with this config may have sounds beside what it sees."""
    return isinstance(own_config(config).get("audio_config"), Mapping) and limits.get("audio", NO_LIMIT) > 0


def has_reader(config: Mapping[str, Any], limits: Mapping[str, int]) -> bool:
    """Return whether the largest item of a model with this config is known, where prompts have what ``limits`` say.

    Of models that are asked for sounds alone it is for Gemma, whose dummy takes next to nothing, and for Whisper.
    """
    model_type = str(own_config(config).get("model_type", ""))
    sees = limits.get("image", NO_LIMIT) or limits.get("video", NO_LIMIT)
    if not sees and model_type not in (*_SHORT_SOUNDS, *_UNWRAPPED):
        return not hears(config, limits)
    return largest_item(config, {}) is not None


_GEMMA4_FRAMES, _GEMMA4_FRAME_TOKENS = 32, 70
GEMMA4_VIDEO_TOKENS, _GEMMA4_DUMMY_TOKENS = _GEMMA4_FRAMES * (_GEMMA4_FRAME_TOKENS + 2 + 6), _GEMMA4_FRAMES * 8 * 8
"""Tokens of 32 frames, with marks and a time (vllm/model_executor/models/gemma4_mm.py, get_mm_max_tokens_per_item)."""


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
    inner_key: str = "intermediate_size"
    side: int = 0
    further: int = 0
    tiles: int = 1
    patches: int = 0
    frames: int = 1
    tokens: int = 0
    merge_key: str = ""
    video_tokens: int = 0
    class_video_tokens: int = 0
    video_unit: int = 1
    video_beside_image: bool = False
    video_models: tuple[str, ...] = ()
    alone: bool = False
    projects: tuple[int, int] = (0, 0)
    versions: tuple[str, ...] = ()


@cache
def _rows() -> Mapping[str, EncoderRow]:
    def read(document: Mapping[str, Any]) -> dict[str, EncoderRow]:
        rows = (EncoderRow(**row) for row in document["encoders"])
        return {model_type: row for row in rows for model_type in row.model_types}

    return read_shipped("encoders.json", read)


def _row_of(config: Mapping[str, Any]) -> EncoderRow | None:
    model_type = str(config.get("model_type", ""))
    text = config.get("text_config")
    if model_type == "glm4v_moe" and isinstance(text, Mapping) and _number(text, "max_position_embeddings", 0) > 65536:
        model_type = "glm46v"  # GLM-4.6V's own name for itself; GLM-4.5V has 65,536 positions, 4.6V 131,072
    row = _rows().get(model_type)
    return row if row is None or not row.versions or str(config.get("version")) in row.versions else None


def _of_row(row: EncoderRow, config: Mapping[str, Any], section: Mapping[str, Any]) -> ImageSize:
    hidden = _number(section, f"{row.prefix}hidden_size", row.hidden)
    inner = _number(section, f"{row.prefix}{row.inner_key}", row.inner)
    patch = _number(section, "patch_size", row.patch)
    patches = row.patches or row.tiles * (_number(section, "image_size", row.side) // patch) ** 2
    whole, divided, inner_divided = row.widest
    text = config.get("llm_config", config.get("text_config"))
    text = text if isinstance(text, Mapping) else config
    takes_videos = not row.video_models or text.get("model_type") in row.video_models
    return ImageSize(
        pixels=row.frames * patches * _square(patch),
        patches=patches + row.tiles * row.further,
        tokens=row.tokens or patches // _number(config, row.merge_key, row.merge) ** 2,
        hidden_size=hidden,
        inner_width=divided * hidden + inner_divided * inner,
        held_width=(whole - RESIDUAL_WIDTHS) * hidden,
        video_tokens=row.video_tokens if takes_videos else 0,
        class_video_tokens=row.class_video_tokens,
        video_unit=row.video_unit,
        video_beside_image=row.video_beside_image,
        alone=row.alone,
        projected_width=row.projects[0] * _number(text, "hidden_size", 0),
        projected_with_ranks=row.projects[1] * _number(text, "hidden_size", 0),
    )


def _deepseek_ocr(config: Mapping[str, Any], section: Mapping[str, Any]) -> ImageSize | None:
    """An image of 1280 x 1280, one after the other: whole in 1024 x 1024, then as 2 x 2 tiles of 640 x 640.

    SAM's encoder is the widest, whole on every rank. Counted with a dispatch mode on vLLM's class (deepencoder.py):
    77,568,000 elements with the four tiles of 4,915,200 values in 0.33.0, in a layer with windows; 232,783,872 with the
    whole image of 3,145,728 in 0.29.0, where 4,096 patches have a bias for each other in 12 heads. DeepSeek-VL2 has the
    same model_type and other towers.
    """
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or "DeepseekOCRForCausalLM" not in architectures:
        return None
    patches, channels = 4 * 40 * 40, 768
    tiles = 4 * _square(640)
    held, unfused = (each // patches - RESIDUAL_WIDTHS * channels for each in (77_568_000 - tiles, 229_638_144))
    return ImageSize(
        pixels=_square(1024) + tiles,
        patches=patches,
        tokens=16 * 17 + 20 * 21 + 1,
        hidden_size=channels,
        inner_width=0,
        held_width=held,
        unfused_width=unfused,
        alone=True,
    )


def _gemma3n(config: Mapping[str, Any], section: Mapping[str, Any]) -> ImageSize:
    """An image of 768 x 768 and 256 tokens, through timm's MobileNetV5 of 300 million weights, whole on every rank.

    The widest point is the norm inside a block of 192 x 192 pixels: 768 channels three times and a mean, beside the
    block's input and its caller's, of 128 (mobilenetv5_300m_enc of timm 1.0.31, counted with a dispatch mode: 183.4 MiB
    an image in 16 bits). What cuDNN's convolutions take is not in it.
    """
    side, channels, wide = 192, 128, 768
    return ImageSize(_square(4 * side), side * side, 256, channels, 0, held_width=3 * wide + 1)


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
    return replace(frame, tokens=GEMMA4_VIDEO_TOKENS, dummy_tokens=_GEMMA4_DUMMY_TOKENS)


def _gemma4_unified(config: Mapping[str, Any], section: Mapping[str, Any]) -> ImageSize:
    """The same video without an encoder: frame by frame, its pixels are projected (gemma4_unified.py)."""
    side, width = _number(section, "model_patch_size", 48), _number(section, "mm_embed_dim", 3840)
    patches = _GEMMA4_FRAMES * _GEMMA4_FRAME_TOKENS
    return ImageSize(
        pixels=patches * _square(side),
        patches=patches,
        tokens=GEMMA4_VIDEO_TOKENS,
        hidden_size=0,
        inner_width=0,
        held_width=width,
        frames=_GEMMA4_FRAMES,
        dummy_tokens=_GEMMA4_DUMMY_TOKENS,
    )


def _qwen_vl(config: Mapping[str, Any], section: Mapping[str, Any], tokens: int = 16384) -> ImageSize:
    """Images of any size, at most 16,384 tokens after merging 2 x 2 patches; two frames share a patch."""
    merge = _number(section, "spatial_merge_size", 2)
    patch, frames = _number(section, "patch_size", 14), _number(section, "temporal_patch_size", 2)
    hidden = _number(section, "embed_dim", 0) or _number(section, "hidden_size", 1280)
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


_OMNI_PAIR_TOKENS: Final = 27 * 27


def _qwen3_omni(config: Mapping[str, Any], section: Mapping[str, Any]) -> ImageSize:
    """Qwen3-VL's encoder with the limits of Qwen2.5-VL: 12,845,056 pixels (preprocessor_config.json), here of 32 x 32.

    The longest video is counted by them, too, and goes before an image of equal size (MultiModalBudget,
    get_modality_with_max_tokens); but two of its frames have 768 tokens at most (Qwen3OmniMoeProcessorKwargs), which
    are 27 x 27. What deeper mergers read stays unmerged until the last block (qwen3_omni_moe_thinker.py,
    Qwen3Omni_VisionTransformer, read in 0.25.1 to 0.33.0).
    """
    side = _number(section, "patch_size", 16) * _number(section, "spatial_merge_size", 2)
    image = _qwen_vl(config, section, 12_845_056 // side**2)
    held = image.held_width + image.deepstack_outputs * image.hidden_size
    return replace(image, held_width=held, video_items=7, pair_tokens=_OMNI_PAIR_TOKENS)


def _qwen2_5_omni(config: Mapping[str, Any], section: Mapping[str, Any]) -> ImageSize:
    return replace(_qwen2_5_vl(config, section), pair_tokens=_OMNI_PAIR_TOKENS)


_LLAVA_NEXT_GRIDS: Final = ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))
"""image_grid_pinpoints of transformers' LlavaNextConfig."""


def _is_pair(value: object) -> bool:
    is_two = isinstance(value, list | tuple) and len(value) == 2
    return is_two and all(isinstance(side, int) and side > 0 for side in value)  # type: ignore[attr-defined]


def _llava_next(config: Mapping[str, Any], section: Mapping[str, Any]) -> ImageSize:
    """The grid of most tokens: its tiles and the whole image, a token for each patch and each row of patches.

    llava_next.py (0.25.1 to 0.33.0), with a tower of CLIP or SigLIP; where several of its layers are read
    (Granite Vision), the output of every layer is kept.
    """
    side, patch = _number(section, "image_size", 336), _number(section, "patch_size", 14)
    hidden, rows = _number(section, "hidden_size", 1024), max(side // patch, 1)
    stated = config.get("image_grid_pinpoints")
    grids = [each for each in stated if _is_pair(each)] if isinstance(stated, list) else []
    pairs = [(-(-height // side), -(-width // side)) for height, width in grids or _LLAVA_NEXT_GRIDS]
    high, wide = max(pairs, key=lambda pair: pair[0] * (rows * pair[1] + 1))
    tiles = high * wide + 1
    further = int(section.get("model_type", "clip_vision_model") == "clip_vision_model")
    kept = _number(section, "num_hidden_layers", 24) - 1 if isinstance(config.get("vision_feature_layer"), list) else 0
    return ImageSize(
        pixels=tiles * _square(side),
        patches=tiles * (rows * rows + further),
        tokens=rows * high * (rows * wide + 1) + rows * rows,
        hidden_size=hidden,
        inner_width=2 * _number(section, "intermediate_size", 4 * hidden),
        held_width=(2 + kept) * hidden,
    )


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


def _whisper(config: Mapping[str, Any], section: Mapping[str, Any]) -> ImageSize:
    """A sound of 30 s, of two frames for each of its 1,500 tokens (whisper.py, WhisperEncoder, read in 0.30.0).

    Whole on every rank are the layer's input, the residual and the norm's output, beside fc1's output and its GELU.
    """
    tokens, hidden = _number(config, "max_source_positions", 1500), _number(config, "d_model", 1280)
    values, inner = 2 * tokens * _number(config, "num_mel_bins", 128), _number(config, "encoder_ffn_dim", 4 * hidden)
    return ImageSize(values, tokens, tokens, hidden, 2 * inner, held_width=hidden)


_READERS: dict[str, Callable[[Mapping[str, Any], Mapping[str, Any]], ImageSize | None]] = {
    "mistral3": _pixtral,
    "mllama": _mllama,
    "qwen2_vl": _qwen2_vl,
    "qwen2_5_vl": _qwen2_5_vl,
    "qwen3_vl": _qwen_vl,
    "qwen3_vl_moe": _qwen_vl,
    "qwen3_5": _qwen_vl,
    "qwen3_5_moe": _qwen_vl,
    "qwen4_exp": _qwen_vl,
    "qwen2_5_omni_thinker": _qwen2_5_omni,
    "qwen3_omni_moe_thinker": _qwen3_omni,
    "llava_next": _llava_next,
    "dots_ocr": _dots,
    "deepseek_vl_v2": _deepseek_ocr,
    "gemma3n": _gemma3n,
    "gemma4": _gemma4,
    "gemma4_unified": _gemma4_unified,
    "whisper": _whisper,
}
_UNWRAPPED = frozenset(("whisper",))
"""Models whose encoder stands in no section of its own."""
_SHORT_SOUNDS = frozenset(("gemma3n", "gemma4", "gemma4_unified"))
"""Models whose dummy sound is as short as one window of their features (get_dummy_mm_data in gemma3n_mm.py)."""
_VIDEOS_AS_IMAGES = {"gemma4": _gemma4_image, "gemma4_unified": None}
"""Models that take a video as images of its frames, and how one image is read; None where it takes next to nothing."""
