"""What encoders take in vLLM's profile run: counted on transformers' own classes where vLLM runs those."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.models import resolve_model
from kvplan.catalog.reader import read_config
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.estimate.placed.vllm import place_vllm
from kvplan.estimate.vllm.activation import cublas_bytes
from kvplan.estimate.vllm.encoders import _READERS, has_reader, largest_item
from kvplan.estimate.vllm.kinds import deployment_kinds
from kvplan.estimate.vllm.prediction import VllmPrediction, predict_vllm
from kvplan.estimate.vllm.vision import vision_profile
from kvplan.paths import profiles_dir
from kvplan.settings import ServingSettings
from kvplan.units import GIB

FRAMES, PATCHES = 2, 630


def _section(side: int, patch: int) -> dict[str, int]:
    return {"image_size": side, "patch_size": patch}


def predict(model: str, gpu: str, version: str, **settings: object) -> VllmPrediction:
    return predict_vllm(resolve_model(model), find_gpu(gpu), ServingSettings(**settings), version)  # type: ignore[arg-type]


def peak_bytes(run: Callable[[], object], kept: list[Any]) -> int:
    """The most bytes of tensors that are alive at once in ``run``, with the inputs ``kept`` and without weights."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Alive(TorchDispatchMode):
        now = most = 0

        def __init__(self, weights: set[int]) -> None:
            super().__init__()
            self.seen = weights

        def take(self, made: object) -> None:
            for each in tree_leaves(made):
                storage = each.untyped_storage() if hasattr(each, "untyped_storage") else None
                if storage is not None and storage._cdata not in self.seen:
                    self.seen.add(storage._cdata)
                    self.now += storage.nbytes()
                    weakref.finalize(storage, self.free, storage._cdata, storage.nbytes())
            self.most = max(self.most, self.now)

        def free(self, key: int, size: int) -> None:
            self.seen.discard(key)
            self.now -= size

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = function(*args, **(kwargs or {}))
            self.take(made)
            return made

    module = kept.pop(0)
    counted = Alive({each.untyped_storage()._cdata for each in (*module.parameters(), *module.buffers())})
    with counted:
        counted.take(kept)
        run()
    return counted.most


@pytest.mark.parametrize("model", ["gemma-4-e2b", "gemma-4-31b"])
def test_gemma_4s_frames_take_what_its_class_takes(model: str) -> None:
    """vLLM runs transformers' class (gemma4_mm.py, _process_video_input); two layers are alive as many are."""
    import torch
    from transformers.models.gemma4 import Gemma4VisionConfig
    from transformers.models.gemma4.modeling_gemma4 import Gemma4VisionModel

    section = dict(resolve_model(model).raw_config["vision_config"], num_hidden_layers=2)
    section["rope_parameters"] = {"rope_theta": 100.0, "rope_type": "axial"}
    tower = Gemma4VisionModel(Gemma4VisionConfig(**section)).to(torch.bfloat16).eval()
    side = torch.arange(24)
    places = torch.full((FRAMES, PATCHES, 2), -1)
    places[:, : 24 * 24] = torch.stack(torch.meshgrid(side, side, indexing="xy"), -1).reshape(-1, 2)
    pixels = torch.rand(FRAMES, PATCHES, 3 * section["patch_size"] ** 2, dtype=torch.bfloat16)

    @torch.no_grad()
    def run() -> None:
        padding = (places == -1).all(dim=-1)
        inputs = tower.patch_embedder(pixels, places, padding)
        tower.encoder(inputs_embeds=inputs, attention_mask=~padding, pixel_position_ids=places)

    counted = peak_bytes(run, [tower, pixels, places])
    found = predict(model, "h200", "0.29.0", max_model_len=4096, max_num_seqs=1, max_num_batched_tokens=2496)
    profile = vision_profile(resolve_model(model), found.settings.serving, vllm_release("0.29.0"))
    assert profile is not None
    video = 2 * (profile.pixels + profile.inside)  # 32 frames, which an H200 takes at once
    assert video * FRAMES / 32 == pytest.approx(counted, rel=0.005)


def test_gemma_4s_frames_are_encoded_as_many_at_once_as_memory_lets() -> None:
    """A tenth of an L4's 22.04 GiB holds 11 frames by vLLM's estimate, a T4's 7; before 0.22 it took one by one."""

    def frames(gpu: str, version: str = "0.29.0", **settings: object) -> float:
        found = predict("gemma-4-e2b", gpu, version, max_num_batched_tokens=2048, max_model_len=8192, **settings)
        inside = found.rank.activation.encoder_bytes - cublas_bytes(find_gpu(gpu)) - 2 * 32 * PATCHES * 768
        return inside / (2 * PATCHES * 768)

    width = 4 + 3 * 4 + (2 * 64 + PATCHES // 2) / 768  # hidden widths; of the mask a byte, not two
    assert frames("l4") == pytest.approx(11 * width + 11)  # the second batch, beside what the first left
    assert frames("t4", dtype="float16") == pytest.approx(7 * width + 3 * 7)
    assert frames("h200", version="0.20.0") * 768 == pytest.approx(10 * 10240)  # positions, one-hot


def test_gemma_4s_capped_logits_are_twice_alive() -> None:
    """X002: vLLM 0.28.0 on an L4 printed 0.27 GiB of peak activation, without cuBLAS's workspace, which stays."""
    found = predict("google/gemma-4-E4B-it-qat-w4a16-ct", "l4", "0.28.0", max_model_len=32768)
    peak = found.rank.activation
    assert peak.decided_by == "sampler"
    assert (peak.peak_bytes - cublas_bytes(find_gpu("l4"))) / GIB == pytest.approx(0.27, abs=0.005)


@pytest.mark.parametrize("model", ["gemma-3-4b", "paddleocr-vl"])
def test_plain_encoders_take_what_their_class_takes(model: str) -> None:
    """vLLM's copies of these blocks hold what transformers' do (profiles/encoders.json)."""
    import torch
    from transformers import SiglipVisionConfig, SiglipVisionModel

    section = resolve_model(model).raw_config["vision_config"]
    sizes = {key: section[key] for key in ("hidden_size", "intermediate_size", "num_attention_heads", "patch_size")}
    config = SiglipVisionConfig(**sizes, image_size=224, num_hidden_layers=2, vision_use_head=False)
    tower = SiglipVisionModel(config).to(torch.bfloat16).eval()
    pixels = torch.rand(1, 3, 224, 224, dtype=torch.bfloat16)

    @torch.no_grad()
    def run() -> None:
        tower(pixels)

    counted = peak_bytes(run, [tower, pixels])
    found = predict(model, "h200", "0.30.0", max_model_len=4096, max_num_seqs=1, max_num_batched_tokens=4096)
    profile = vision_profile(resolve_model(model), found.settings.serving, vllm_release("0.30.0"))
    assert profile is not None
    values, patches = 3 * section["patch_size"] ** 2, (224 // section["patch_size"]) ** 2
    assert 2 * patches * (values + profile.inside * values / profile.pixels) == pytest.approx(counted, rel=0.005)


def test_minimax_m3s_video_is_wider_in_its_projector_than_in_its_encoder() -> None:
    """Up to 192,000 tokens (mm_preprocess.py), of 4 patches each, made 6,144 wide before they merge (vision_tower.py).

    With several ranks the projector's output is there twice, before and after the all-reduce.
    """

    def encoder(**settings: object) -> int:
        found = predict("minimax-m3", "h200", "0.33.0", tensor_parallel_size=8, **settings)
        return found.rank.activation.encoder_bytes

    patches, values = 4 * 192_000, 3 * 2 * 14 * 14
    assert encoder(max_model_len=262_144) == 2 * patches * (values + 1280 + 2 * 6144)
    assert encoder(max_model_len=262_144) == encoder(max_model_len=192_000) > 20 * encoder(max_model_len=8192)
    gpu, asked = find_gpu("h200"), ServingSettings(tensor_parallel_size=8, max_model_len=262_144)
    notes = place_vllm(resolve_model("minimax-m3"), gpu, asked, "0.33.0").notes
    assert any("of the activations are the encoder's" in note for note in notes)
    assert encoder(max_model_len=262_144, limit_mm_per_prompt="video=0") == pytest.approx(
        encoder(max_model_len=8192), rel=0.1
    )


def test_internvls_video_fills_the_context() -> None:
    """internvl.py, get_num_frames_with_most_features: frames of 256 tokens and 1,025 patches; no video for InternLM."""

    def encoder(text_type: str, **settings: object) -> int:
        text = {
            "architectures": ["Qwen2ForCausalLM" if text_type == "qwen2" else "LlamaForCausalLM"],
            "model_type": text_type,
            "hidden_size": 3584,
            "num_hidden_layers": 2,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "intermediate_size": 18944,
            "vocab_size": 151674,
        }
        config = {
            "architectures": ["InternVLChatModel"],
            "model_type": "internvl_chat",
            "vision_config": {"hidden_size": 1024, "intermediate_size": 4096, "image_size": 448, "patch_size": 14},
            "llm_config": text,
        }
        asked = ServingSettings(max_num_batched_tokens=2048, max_num_seqs=8, **settings)  # type: ignore[arg-type]
        found = predict_vllm(read_config(config, model_id="internvl"), find_gpu("a100-80gb-sxm"), asked, "0.30.0")
        return found.rank.activation.encoder_bytes - cublas_bytes(find_gpu("a100-80gb-sxm"))

    frame = 2 * (3 * 448 * 448 + 1025 * (4 * 1024 + 2 * 4096))
    assert encoder("qwen2", max_model_len=32768) == 128 * frame
    assert encoder("qwen2", max_model_len=32768, limit_mm_per_prompt="video=0") == 13 * frame
    assert encoder("llama", max_model_len=32768) == 13 * frame


def test_minicpm_vs_resampler_is_wider_than_its_encoder() -> None:
    """minicpmv.py, Resampler2_5: nn.MultiheadAttention over patches as wide as the language model, 6.1 widths of it."""
    import torch

    width, slices, patches, hidden = 512, 2, 1024, 1152
    attention = torch.nn.MultiheadAttention(width, width // 128).to(torch.bfloat16).eval()
    project = torch.nn.Linear(hidden, width, bias=False, dtype=torch.bfloat16)
    seen = torch.rand(slices, patches, hidden, dtype=torch.bfloat16)
    queries = torch.rand(64, slices, width, dtype=torch.bfloat16)

    @torch.no_grad()
    def run() -> None:
        places = torch.zeros(slices, patches, width, dtype=torch.bfloat16).permute(1, 0, 2)
        values = torch.layer_norm(project(seen), (width,)).permute(1, 0, 2)
        attention(queries, values + places, values, key_padding_mask=torch.zeros(slices, patches, dtype=torch.bool))

    counted = peak_bytes(run, [torch.nn.ModuleList([attention, project]), seen])
    config = {"model_type": "minicpmv", "version": 2.6, "hidden_size": width, "vision_config": {"hidden_size": hidden}}
    image = largest_item(config, {})
    assert image is not None and (image.tokens, image.patches, image.video_tokens) == (640, 10 * patches, 16 * 64)
    assert 2 * slices * patches * (hidden + image.projected_width) == pytest.approx(counted, rel=0.05)
    assert largest_item({**config, "version": 2.5}, {}) is None


def test_whisper_is_profiled_with_sounds_that_fill_a_step() -> None:
    """One sound a prompt, 1,500 tokens each: 5 in a step of 8,192 (MultiModalBudget)."""

    def encoder(**settings: object) -> int:
        found = predict("whisper-large-v3", "h100", "0.30.0", max_num_batched_tokens=8192, **settings)
        return found.rank.activation.encoder_bytes - cublas_bytes(find_gpu("h100"))

    assert encoder(max_num_seqs=64) == 5 * encoder(max_num_seqs=1) == 5 * 2 * (3000 * 128 + 1500 * (3 + 2 * 4) * 1280)


def test_an_encoder_without_a_reader_is_said_and_has_a_kind_of_its_own() -> None:
    phi = resolve_model("phi-3-vision-128k")
    gpu = find_gpu("h200")
    for settings, is_counted in (({}, False), ({"language_model_only": True}, True)):
        found = predict("phi-3-vision-128k", "h200", "0.30.0", max_model_len=8192, **settings)
        assert any("encoder" in note and "not counted" in note for note in found.settings.notes) != is_counted
        kind = deployment_kinds(phi, gpu, found)["inputs"]
        assert (kind == "text alone") == is_counted
        assert ("not counted" in kind) != is_counted


def test_omni_models_run_a_small_video_where_a_large_one_is_counted() -> None:
    """qwen2_vl.py counts 14 frames as 7 images of 12,544 tokens, of which the video's processor leaves 7 x 729."""

    def encoder(**settings: object) -> int:
        found = predict("qwen3-omni-30b-a3b", "h200", "0.30.0", max_model_len=65536, **settings)
        assert not any("not counted" in note for note in found.settings.notes)
        return found.rank.activation.encoder_bytes - cublas_bytes(find_gpu("h200"))

    width = 3 * 2 * 16 * 16 + (2 + 1 + 3 + 1 + 8) * 1152
    kept = 3 * 2048  # put out by earlier blocks
    assert encoder() == 2 * 5 * 729 * (4 * width + kept)
    assert encoder(limit_mm_per_prompt="video=0") == 2 * 12544 * (4 * width + kept)


def test_what_earlier_blocks_put_out_is_alive_in_the_last() -> None:
    """Qwen3-VL-2B's largest image, 0.25.1's first runner run without a GPU: 1,928 MiB, 8 of them rotary tables."""
    found = predict("qwen3-vl-2b", "l4", "0.24.0", max_model_len=2048, max_num_seqs=1, max_num_batched_tokens=2048)
    assert found.rank.activation.encoder_bytes - cublas_bytes(find_gpu("l4")) == 1920 << 20


def test_omni_models_limited_to_sounds_are_not_counted_and_limited_to_nothing_are_text_alone() -> None:
    sounds = predict("qwen3-omni-30b-a3b", "h200", "0.30.0", limit_mm_per_prompt="image=0,video=0")
    assert any("not counted" in note for note in sounds.settings.notes)
    nothing = predict("qwen3-omni-30b-a3b", "h200", "0.30.0", limit_mm_per_prompt="image=0,video=0,audio=0")
    assert nothing.settings.serving.language_model_only
    assert has_reader(resolve_model("gemma-4-e2b").raw_config, {"image": 0, "video": 0})


def test_deepseek_ocrs_patches_have_a_bias_for_each_other_before_0_30() -> None:
    """Counted on vLLM's class; of 11 images in a step of 8,192 tokens one is encoded at a time."""

    def encoder(version: str) -> float:
        found = predict("deepseek-ocr", "h200", version, max_model_len=8192, max_num_batched_tokens=8192)
        pixels = 11 * 3 * (1024**2 + 4 * 640**2)
        return found.rank.activation.encoder_bytes - cublas_bytes(find_gpu("h200")) - 2 * pixels

    assert encoder("0.30.0") == 2 * (77_568_000 - 4 * 3 * 640**2)
    assert encoder("0.29.0") == pytest.approx(2 * (232_783_872 - 3 * 1024**2), rel=1e-4)
    vl2 = {"model_type": "deepseek_vl_v2", "architectures": ["DeepseekVLV2ForCausalLM"], "vision_config": {}}
    assert largest_item(vl2, {}) is None and not has_reader(vl2, {})


def test_gemma_3ns_images_are_encoded_all_at_once() -> None:
    """A dispatch mode over timm's mobilenetv5_300m_enc counts 183.4453125 MiB in 16 bits for one, twice for two."""
    text = resolve_model("gemma-3n-e4b").raw_config
    config = {
        "architectures": ["Gemma3nForConditionalGeneration"],
        "model_type": "gemma3n",
        "text_config": {**text.get("text_config", text)},
        "vision_config": {"model_type": "gemma3n_vision", "hidden_size": 2048},
        "audio_config": {"model_type": "gemma3n_audio"},
    }
    spec, settings = read_config(config, model_id="gemma-3n"), {"max_num_batched_tokens": 2048, "max_num_seqs": 64}

    def encoder(**further: object) -> int:
        asked = ServingSettings(max_model_len=8192, **settings, **further)  # type: ignore[arg-type]
        found = predict_vllm(spec, find_gpu("l40s"), asked, "0.30.0")
        assert not any("not counted" in note for note in found.settings.notes)
        return found.rank.activation.encoder_bytes

    assert encoder() - cublas_bytes(find_gpu("l40s")) == 8 * int(183.4453125 * 2**20)
    assert encoder(limit_mm_per_prompt="image=0") == 0


def test_glm_4_6v_has_the_videos_of_its_processor_from_0_27_on() -> None:
    """100,352,000 pixels, 64,000 tokens (pull request 43422 of vllm-project/vllm), by whichever name it goes."""

    def encoder(model: str, version: str) -> int:
        settings = {"max_model_len": 65536, "tensor_parallel_size": 2}
        found = predict(model, "h200", version, **settings)
        return found.rank.activation.encoder_bytes - cublas_bytes(find_gpu("h200"))

    old, new = encoder("glm-4.6v-fp8", "0.25.1"), encoder("glm-4.6v-fp8", "0.28.0")
    assert old == encoder("glm-4.5v-fp8", "0.28.0")
    assert new == pytest.approx(old * 64_000 / 30_000, rel=0.001)


@pytest.mark.parametrize(
    ("config", "tokens", "patches"),
    [
        ({"model_type": "llava_next"}, 2928, 5 * 577),
        (
            {
                "model_type": "llava_next",
                "image_grid_pinpoints": [[384, 3840], [1152, 1152]],
                "vision_config": {"model_type": "siglip_vision_model", "image_size": 384},
            },
            27 * (270 + 1) + 27 * 27,
            11 * 729,
        ),
        ({"model_type": "idefics3", "scale_factor": 2, "vision_config": _section(364, 14)}, 2873, 11492),
        ({"model_type": "smolvlm", "scale_factor": 4, "vision_config": _section(512, 16)}, 1088, 17408),
        ({"model_type": "llava_onevision"}, 8748, 13 * 729),
        ({"model_type": "internvl", "vision_config": {"image_size": [448, 448]}}, 13 * 256, 13 * 1025),
        ({"model_type": "step3_vl"}, 3164, 36 * (36 * 36 + 1)),
    ],
)  # fmt: skip
def test_tiled_images_are_as_large_as_their_processors_make_them(config: Any, tokens: int, patches: int) -> None:
    """get_num_image_tokens of vLLM 0.33's classes for their largest image; of Idefics 3 by the image's 17 tiles."""
    image = largest_item({"vision_config": {}, **config}, {})
    assert image is not None and (image.tokens, image.patches) == (tokens, patches)


def test_readers_take_whatever_a_config_has() -> None:
    """Sections that are not as expected are as good as left out; no model has two readers."""
    named = [
        name
        for row in json.loads((profiles_dir() / "encoders.json").read_text())["encoders"]
        for name in row["model_types"]
    ]
    assert len(named) == len(set(named)) and not set(named) & set(_READERS)
    for model_type in {*named, *_READERS}:
        config = {"model_type": model_type, "version": "4.5", "architectures": ["DeepseekOCRForCausalLM"]}
        image = largest_item({**config, "vision_config": {"hidden_size": "wide"}}, {})
        assert image is not None and min(image.pixels, image.patches, image.tokens) > 0
        assert (largest_item({"model_type": model_type, "vision_config": None}, {}) is None) == (
            model_type != "whisper"
        )
    assert largest_item({"model_type": "llama4"}, {}) == largest_item({"model_type": "llama4", "vision_config": {}}, {})
    assert has_reader({"model_type": "llama4"}, {}) and not has_reader({"model_type": "gemma3"}, {})


def test_llama_4s_copies_without_a_section_have_its_encoder() -> None:
    """V031: vLLM 0.19.0 on four H100 printed a peak of 3.19 GiB, 0.1 of it images and what became of them."""
    settings = {"max_model_len": 8192, "max_num_batched_tokens": 8192}
    peak = predict("llama-4-scout", "h100", "0.19.0", tensor_parallel_size=4, **settings).rank.activation
    assert peak.peak_bytes / GIB == pytest.approx(3.19, abs=0.02)
