"""Checkpoints beside a config: exact weights from headers, and one sentence where the two do not fit each other."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from checkpoints import LLAMA, Tensors, llama_tensors, num_bytes, write_checkpoint, write_file

from independent_count import CORRECTIONS, build_meta_model
from kvplan.catalog.checkpoint.naming import layers_named, place_of
from kvplan.catalog.checkpoint.stored import count_stored
from kvplan.catalog.models import find_profile, resolve_model
from kvplan.catalog.spec import ModelSpec
from kvplan.errors import KvplanError
from kvplan.estimate.vllm.stored import stored_scale
from kvplan.estimate.weights import extra_bytes, size_weights

FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def read(folder: Path) -> ModelSpec:
    return resolve_model(str(folder))


def notes_of(spec: ModelSpec) -> str:
    return "\n".join(spec.assumptions)


@pytest.mark.parametrize("shards", [1, 3])
def test_weights_are_those_of_the_headers(tmp_path: Path, shards: int) -> None:
    tensors = llama_tensors(LLAMA)
    spec = read(write_checkpoint(tmp_path, LLAMA, tensors, shards=shards))
    assert size_weights(spec, "bfloat16").total_bytes == num_bytes(tensors) == 2 * spec.num_parameters
    files = "1 file" if shards == 1 else "3 files"
    assert f"Weights from the checkpoint: 21 tensors in {files}, " in notes_of(spec)
    assert "formulas" not in notes_of(spec)


def test_a_float32_checkpoint_is_served_in_half_the_bytes(tmp_path: Path) -> None:
    tensors = llama_tensors(LLAMA, "F32")
    spec = read(write_checkpoint(tmp_path, LLAMA, tensors))
    assert size_weights(spec, "bfloat16").total_bytes == num_bytes(tensors) // 2
    assert size_weights(spec, "float32").total_bytes == num_bytes(tensors)


def test_a_tied_head_that_is_stored_too_is_loaded_once(tmp_path: Path) -> None:
    config = LLAMA | {"tie_word_embeddings": True}
    spec = read(write_checkpoint(tmp_path, config, llama_tensors(LLAMA)))
    assert size_weights(spec, "bfloat16").total_bytes == num_bytes(llama_tensors(LLAMA, head=False))
    assert "formulas" not in notes_of(spec)


def test_quantized_weights_and_their_scales_stay_as_they_are_stored(tmp_path: Path) -> None:
    tensors = llama_tensors(LLAMA)
    for name, (_, shape) in tuple(tensors.items()):
        if "_proj" in name:
            tensors |= {name: ("F8_E4M3", shape), f"{name}_scale_inv": ("F32", (1, 1))}
    spec = read(write_checkpoint(tmp_path, LLAMA | {"quantization_config": FP8}, tensors))
    found = size_weights(spec, "float32")
    plain = {name: each for name, each in tensors.items() if "_proj" not in name}
    packed = {name: each for name, each in tensors.items() if "_proj" in name}
    assert found.total_bytes == 2 * num_bytes(plain) + num_bytes(packed)
    assert {each.format for each in found.components} == {"float32", "F8_E4M3 as stored", "F32 as stored"}
    assert "formulas" not in notes_of(spec)


def test_the_weights_are_never_read(tmp_path: Path) -> None:
    """16 GB in 8 files, all hole: reading them would take minutes."""
    config = LLAMA | {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8}
    config |= {"num_hidden_layers": 32, "intermediate_size": 14336, "vocab_size": 128256}
    tensors = llama_tensors(config)
    spec = read(write_checkpoint(tmp_path, config, tensors, shards=8))
    assert size_weights(spec, "bfloat16").total_bytes == num_bytes(tensors) > 16e9


@pytest.mark.parametrize("index", [True, False])
def test_missing_shards_are_named(tmp_path: Path, index: bool) -> None:
    folder = write_checkpoint(tmp_path, LLAMA, llama_tensors(LLAMA), shards=4, index=index)
    (folder / "model-00002-of-00004.safetensors").unlink()
    os.truncate(folder / "model-00003-of-00004.safetensors", 2000)
    (folder / "model-00004-of-00004.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", encoding="utf-8"
    )
    spec = read(folder)
    assert spec.checkpoint is None
    wanted = ", ".join(f"model-0000{number}-of-00004.safetensors" for number in (2, 3, 4))
    assert (
        f"3 of the 4 weight files in {folder} are missing or cut off ({wanted}): weights from the config."
        in notes_of(spec)
    )


@pytest.mark.parametrize("length", [0, 4, 8, 500])
def test_a_download_that_has_just_begun_is_a_missing_file(tmp_path: Path, length: int) -> None:
    folder = write_checkpoint(tmp_path, LLAMA, llama_tensors(LLAMA))
    os.truncate(folder / "model.safetensors", length)
    assert "1 of the 1 weight files" in notes_of(read(folder))


@pytest.mark.parametrize(("stored", "configured"), [(1, 2), (4, 2)])
def test_a_checkpoint_with_other_layers_than_its_config_is_refused(
    tmp_path: Path, stored: int, configured: int
) -> None:
    tensors = llama_tensors(LLAMA | {"num_hidden_layers": stored})
    folder = write_checkpoint(tmp_path, LLAMA | {"num_hidden_layers": configured}, tensors)
    with pytest.raises(KvplanError) as caught:
        read(folder)
    assert caught.value.message == f"The config says {configured} layers, but the checkpoint in {folder} has {stored}."


def test_tensors_of_unknown_names_leave_the_formulas(tmp_path: Path) -> None:
    spec = read(write_checkpoint(tmp_path, LLAMA, {"weights_of_everything": ("BF16", (64, 64))}))
    assert spec.checkpoint is None
    assert "have names that kvplan does not know: weights from the config." in notes_of(spec)


def test_a_wider_checkpoint_than_its_config_is_noted_and_counts(tmp_path: Path) -> None:
    tensors = llama_tensors(LLAMA | {"intermediate_size": 128})
    spec = read(write_checkpoint(tmp_path, LLAMA, tensors))
    assert "The checkpoint holds 90,432 parameters; the formulas give 78,144." in notes_of(spec)
    assert size_weights(spec, "bfloat16").total_bytes == num_bytes(tensors)


def test_tables_and_masks_that_nobody_loads_do_not_count(tmp_path: Path) -> None:
    tensors: Tensors = llama_tensors(LLAMA) | {"model.layers.0.self_attn.rotary_emb.inv_freq": ("F32", (8,))}
    spec = read(write_checkpoint(tmp_path, LLAMA, tensors))
    assert size_weights(spec, "bfloat16").total_bytes == num_bytes(llama_tensors(LLAMA))


def test_an_adapter_or_a_second_copy_beside_the_model_does_not_count(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, LLAMA, llama_tensors(LLAMA))
    for name in ("adapter_model", "consolidated"):
        write_file(folder / f"{name}.safetensors", llama_tensors(LLAMA))
    assert size_weights(read(folder), "bfloat16").total_bytes == num_bytes(llama_tensors(LLAMA))


@pytest.mark.parametrize(
    "content",
    [
        b"\x10\x00\x00\x00\x00\x00\x00\x00not any json yet",
        (2**60).to_bytes(8, "little") + b"{}",
        b"\x02\x00\x00\x00\x00\x00\x00\x00[]",
        b'\x0f\x00\x00\x00\x00\x00\x00\x00{"weight": {}}\n',
        b'\x2f\x00\x00\x00\x00\x00\x00\x00{"a":{"dtype":"F32","shape":1,"data_offsets":0}}',
    ],
)
def test_a_damaged_header_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    folder = write_checkpoint(tmp_path, LLAMA, llama_tensors(LLAMA))
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(KvplanError, match="is not a readable safetensors file"):
        read(folder)


LARGE = 2**62
STRAY = {
    "2^62 x 2^62 in 8 bytes": f'{{"a":{{"dtype":"F32","shape":[{LARGE},{LARGE}],"data_offsets":[0,8]}}}}',
    "more bytes than its shape": '{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,12]}}',
    "a gap": '{"a":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}',
    "one over another": '{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},'
    '"b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}',
    "a name twice": '{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},'
    '"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}',
    "an extent below 0": '{"a":{"dtype":"U8","shape":[-2,-4],"data_offsets":[0,8]}}',
    "a fraction": '{"a":{"dtype":"U8","shape":[8.0],"data_offsets":[0,8]}}',
    "true": '{"a":{"dtype":"U8","shape":[true],"data_offsets":[0,true]}}',
    "digits": '{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,' + "8" * 5000 + "]}}",
    "depth": "[" * 100_000,
}


@pytest.mark.parametrize("header", STRAY.values(), ids=STRAY)
def test_a_header_whose_shapes_are_not_its_bytes_is_refused(tmp_path: Path, header: str) -> None:
    folder = write_checkpoint(tmp_path, LLAMA, llama_tensors(LLAMA))
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header.encode() + bytes(8))
    with pytest.raises(KvplanError, match="is not a readable safetensors file: its header is damaged"):
        read(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json"])
def test_a_pipe_beside_the_config_is_not_waited_for(tmp_path: Path, name: str) -> None:
    folder = write_checkpoint(tmp_path, LLAMA, llama_tensors(LLAMA))
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(KvplanError, match="is a named pipe, not a regular file"):
        read(folder)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("{", "is not a readable index"),
        ("[]", "is not a readable index"),
        ('{"weight_map": {"a": 7}}', "names files outside"),
        ('{"weight_map": {"a": "../other.safetensors"}}', "names files outside"),
        ('{"weight_map": {"a": "../../other.safetensors", "b": []}}', "is not a readable index"),
    ],
)
def test_a_damaged_index_is_one_sentence(tmp_path: Path, index: str, message: str) -> None:
    folder = write_checkpoint(tmp_path, LLAMA, llama_tensors(LLAMA))
    (folder / "model.safetensors.index.json").write_text(index, encoding="utf-8")
    with pytest.raises(KvplanError, match=message):
        read(folder)


GLM: dict[str, Any] = LLAMA | {
    "architectures": ["Glm4MoeForCausalLM"],
    "model_type": "glm4_moe",
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 2,
    "num_nextn_predict_layers": 1,
    "head_dim": 16,
}


def test_multi_token_layers_are_apart_whatever_their_number(tmp_path: Path) -> None:
    """GLM and DeepSeek number them on from the last layer; they are named apart and not among the weights."""
    own = {"model.layers.2.eh_proj.weight": ("BF16", (64, 128)), "model.layers.2.enorm.weight": ("BF16", (64,))}
    tensors: Tensors = llama_tensors(LLAMA) | own
    spec = read(write_checkpoint(tmp_path, GLM, tensors))
    assert size_weights(spec, "bfloat16").total_bytes == num_bytes(llama_tensors(LLAMA))
    assert spec.checkpoint is not None
    assert sum(each.num_bytes for each in spec.checkpoint.multi_token) == num_bytes(own)
    assert [extra.kind for extra in spec.extras] == ["multi_token_prediction"]


def test_multi_token_layers_that_the_checkpoint_lacks_are_not_named(tmp_path: Path) -> None:
    spec = read(write_checkpoint(tmp_path, GLM, llama_tensors(LLAMA)))
    assert spec.extras == ()
    assert "The config names layers for multi-token prediction, which the checkpoint does not have." in notes_of(spec)


def test_a_vision_tower_is_apart_and_exact(tmp_path: Path) -> None:
    text = {key: value for key, value in LLAMA.items() if key != "architectures"}
    config = {
        "architectures": ["LlavaForConditionalGeneration"],
        "model_type": "llava",
        "text_config": text,
        "vision_config": {"model_type": "an_encoder_of_its_own"},
        "torch_dtype": "bfloat16",
    }
    tower: Tensors = {
        "vision_tower.encoder.layers.7.fc1.weight": ("F32", (64, 64)),
        "multi_modal_projector.linear_1.weight": ("F32", (64, 64)),
    }
    language: Tensors = {f"language_model.{name}": each for name, each in llama_tensors(LLAMA).items()}
    spec = read(write_checkpoint(tmp_path, config, language | tower))
    assert size_weights(spec, "bfloat16").total_bytes == num_bytes(language)
    assert extra_bytes(spec, "bfloat16") == num_bytes(tower) // 2


@pytest.mark.parametrize(
    ("names", "encoder", "layers"),
    [
        (["transformer.h.0.attn.c_attn.weight", "transformer.h.11.mlp.c_fc.weight"], "none", 12),
        (["transformer.encoder.layers.27.mlp.dense_4h_to_h.weight"], "none", 28),
        (["encoder.block.5.layer.0.SelfAttention.q.weight", "decoder.block.3.layer.1.x.weight"], "inside", 4),
        (["model.encoder.layers.31.fc1.weight", "model.decoder.layers.3.fc1.weight"], "apart", 4),
        (["visual.blocks.31.mlp.up_proj.weight", "model.language_model.layers.3.mlp.up_proj.weight"], "none", 4),
        (["model.layers.60.mlp.gate.weight", "model.layers.61.shared_head.norm.weight"], "none", 61),
        (["mtp.layers.0.mlp.gate.weight", "model.layers.5.mlp.gate.weight"], "none", 6),
        (["backbone.layers.51.mixer.in_proj.weight", "backbone.embeddings.weight"], "none", 52),
    ],
)
def test_layers_of_published_names(names: list[str], encoder: Any, layers: int) -> None:
    assert layers_named(names, encoder=encoder) == layers


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("model.layers.3.self_attn.q_proj.weight", "layer"),
        ("model.layers.4.mlp.up_proj.weight", "multi_token"),
        ("model.mtp.layers.0.eh_proj.weight", "multi_token"),
        ("model.embed_tokens.weight", "outside"),
        ("lm_head.weight", "outside"),
        ("model.vision_tower.blocks.0.attn.weight", "towers"),
        ("model.embed_audio.embedding.weight", "towers"),
        ("thinker.audio_tower.layers.0.fc1.weight", "towers"),
        ("transformer.h.3.attn.masked_bias", "left out"),
    ],
)
def test_parts_of_published_names(name: str, part: str) -> None:
    assert place_of(name, num_layers=4, encoder="none", tied=False).part == part


def test_the_source_stands_in_the_document(tmp_path: Path) -> None:
    """The note is one of the model's own, so every output has it; JSON says it in a key."""
    from kvplan.estimate.answer import EstimateRequest, make_estimate
    from kvplan.estimate.document import estimate_document

    spec = read(write_checkpoint(tmp_path, LLAMA, llama_tensors(LLAMA)))
    document = json.loads(json.dumps(estimate_document(make_estimate(spec, EstimateRequest()))))
    assert document["model"]["weights_from"] == "checkpoint"
    assert any(note.startswith("Weights from the checkpoint") for note in document["assumptions"])


def test_a_name_that_no_file_can_have_is_a_missing_file(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, LLAMA, llama_tensors(LLAMA))
    index = {"weight_map": {"a": "a" * 5000, "b": "model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    assert "aaaa" in str(notes_of(read(folder)))


NAMES = (
    *("gpt2", "opt-125m", "bloom", "falcon-7b", "phi-2", "mixtral-8x7b", "deepseek-v2-lite", "gemma-3-4b"),
    *("qwen3.5-9b", "whisper-large-v3", "t5-base", "mamba-2.8b", "nemotron-h-56b"),
)


def _tensors(config: dict[str, object]) -> Tensors:
    model = build_meta_model(config)
    found = dict(model.named_parameters(remove_duplicate=True))
    found |= {name: each for name, each in model.named_buffers() if name.rsplit(".", 1)[-1] in CORRECTIONS}
    return {name: ("BF16", tuple(each.shape)) for name, each in found.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_tensor_is_in_its_part(tmp_path: Path, name: str) -> None:
    profile = find_profile(name)
    assert profile is not None
    spec = resolve_model(str(write_checkpoint(tmp_path, profile["config"], _tensors(profile["config"]))))
    assert spec.checkpoint is not None
    assert count_stored(spec.checkpoint.language_model) == spec.num_parameters
    scale = stored_scale(spec, "bfloat16")
    assert [*scale.layers, scale.outside] == pytest.approx([1.0] * (spec.num_layers + 1), rel=1e-4)
    towers = sum(extra.num_parameters or 0 for extra in spec.extras if extra.kind != "multi_token_prediction")
    assert count_stored(spec.checkpoint.towers) == towers
