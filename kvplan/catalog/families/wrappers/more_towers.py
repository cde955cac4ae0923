"""Further vision and audio towers, each described by more than one section of its config."""

from __future__ import annotations

from kvplan.catalog.config_view import ConfigView
from kvplan.catalog.spec import ExtraModule


def _linear(inner: int, out: int) -> int:
    """A matrix and its bias."""
    return inner * out + out


def _encoder_layer(hidden: int, inner: int) -> int:
    """Attention, a feed-forward and two norms, all with biases."""
    return 4 * _linear(hidden, hidden) + _linear(hidden, inner) + _linear(inner, hidden) + 4 * hidden


def blip2_modules(view: ConfigView, text_hidden: int) -> tuple[ExtraModule, ...]:
    """BLIP-2's encoder, and the Q-Former whose queries a matrix projects (transformers: Blip2Model)."""
    vision = view.section("vision_config") or ConfigView({})
    former = view.section("qformer_config") or ConfigView({})
    hidden, layers = vision.integer("hidden_size", default=1408), vision.layers("num_hidden_layers", default=39)
    patch = vision.integer("patch_size", default=14)
    tokens = (vision.integer("image_size", default=224) // patch) ** 2 + 1
    embedding = hidden + _linear(3 * patch**2, hidden) + tokens * hidden
    layer = _encoder_layer(hidden, vision.integer("intermediate_size", default=6144))
    if not vision.flag("qkv_bias", default=True):
        layer -= 3 * hidden
    width, depth = former.integer("hidden_size", default=768), former.layers("num_hidden_layers", default=12)
    seen, step = (
        former.integer("encoder_hidden_size", default=1408),
        former.integer("cross_attention_frequency", default=2),
    )
    queried = 2 * _linear(width, width) + 2 * _linear(seen, width) + 2 * width
    queries = view.integer("num_query_tokens", default=32) * width
    joined = queries + 2 * width + depth * _encoder_layer(width, former.integer("intermediate_size", default=3072))
    joined += -(-depth // step) * queried + _linear(width, text_hidden)
    tower = ExtraModule("vision tower", "vision", embedding + layers * layer + 2 * hidden, layers)
    return (tower, ExtraModule("projector", "projector", joined))


def vibevoice_modules(view: ConfigView, text_hidden: int) -> tuple[ExtraModule, ...]:
    """VibeVoice ASR's two encoders of sound and the projector of both (transformers: VibeVoiceAsrModel)."""
    names = {"acoustic_tokenizer_encoder_config": 64, "semantic_tokenizer_encoder_config": 128}
    towers = projector = layers = 0
    for name, size in names.items():
        audio = view.section(name) or ConfigView({})
        hidden = audio.integer("hidden_size", default=size)
        count, depth = _sound_encoder(audio, hidden)
        towers, layers = towers + count, layers + depth
        projector += _linear(hidden, text_hidden) + text_hidden + _linear(text_hidden, text_hidden)
    return (
        ExtraModule("audio tower", "audio", towers, layers),
        ExtraModule("audio projector", "projector", projector),
    )


def _sound_encoder(audio: ConfigView, hidden: int) -> tuple[int, int]:
    """Stages of ConvNeXt blocks, between which a convolution halves the samples' rate and doubles the channels."""
    kernel, channels = audio.integer("kernel_size", default=7), audio.integer("num_filters", default=32)
    wider = audio.integer("ffn_expansion", default=4)
    ratios = audio.integers("downsampling_ratios", minimum=1) or [2, 2, 4, 5, 5, 8]
    depths = audio.integers("depths") or [3, 3, 3, 3, 3, 3, 8]
    if len(depths) != len(ratios) + 1 or len(depths) > 16:
        raise audio.reject("depths", "one more than downsampling_ratios")

    def blocks(count: int) -> int:
        mixed = _linear(channels, wider * channels) + _linear(wider * channels, channels)
        return count * (4 * channels + kernel * channels + channels + mixed)

    total = _linear(audio.integer("channels", default=1) * kernel, channels) + blocks(depths[0])
    for ratio, depth in zip(ratios, depths[1:], strict=True):
        total += _linear(2 * ratio * channels, 2 * channels)
        channels *= 2
        total += blocks(depth)
    return total + _linear(channels * kernel, hidden), sum(depths)


def moondream_modules(vision: ConfigView, text_hidden: int) -> tuple[ExtraModule, ...]:
    """Moondream 3's encoder, and the projector of whole image and crops side by side (vllm: models/moondream3.py)."""
    hidden, layers = vision.integer("enc_dim", default=1152), vision.layers("enc_n_layers", default=27)
    patch = vision.integer("enc_patch_size", default=14)
    patches = (vision.integer("crop_size", default=378) // patch) ** 2
    layer = _encoder_layer(hidden, vision.integer("enc_ff_dim", default=4304))
    tower = _linear(3 * patch**2, hidden) + patches * hidden + layers * layer + 2 * hidden
    inner = vision.integer("proj_inner_dim", default=8192)
    projector = _linear(2 * hidden, inner) + _linear(inner, text_hidden)
    return (
        ExtraModule("vision tower", "vision", tower, layers),
        ExtraModule("projector", "projector", projector),
    )
