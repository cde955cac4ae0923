"""Models from GGUF files answer as the models of transformers that they were written from."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import gguf
import pytest
from dense_models import DenseCheckpoint
from engine_answers import answer, logits_behind
from gguf_files import FILES, GgufCheckpoint
from gguf_mixtures import FILES as MIXTURES
from gguf_mixtures import make_file
from test_dense_equality import NUM_TOKENS, check_answers, engine_of, prompts_of

from kvplan.catalog.models import resolve_model
from kvplan.estimate.kvplan.held_weights import held_weight_bytes
from kvplan_engine import EngineError


@pytest.mark.parametrize("name", FILES)
def test_answers_are_those_of_the_model_it_was_written_from(name: str, tmp_path: Path) -> None:
    checkpoint = GgufCheckpoint(name, tmp_path)
    prompts = prompts_of(checkpoint)
    answers = answer(engine_of(checkpoint.path), prompts, NUM_TOKENS)
    for prompt, tokens in zip(prompts, answers, strict=True):
        assert logits_behind(checkpoint.model, prompt, tokens).argmax(-1).tolist() == tokens


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_file_of_several_types_is_one_call_and_takes_the_predicted_bytes(dtype: str, tmp_path: Path) -> None:
    checkpoint = GgufCheckpoint("q4_k_m", tmp_path)
    llm = engine_of(checkpoint.path, dtype=dtype)
    assert llm.engine.model.decoder.layer_run is not None
    assert llm.engine.memory.weight_bytes == held_weight_bytes(resolve_model(str(checkpoint.path)), dtype, "auto")


@pytest.mark.parametrize("name", MIXTURES)
def test_answers_are_those_of_the_dequantised_weights_in_the_predicted_bytes(name: str, tmp_path: Path) -> None:
    """Transformers computes with what the gguf package makes of the file, and so does the engine where it widens."""
    checkpoint = make_file(name, tmp_path)
    as_dense = cast(DenseCheckpoint, checkpoint)  # has what the checks look at
    prompts, spec = prompts_of(as_dense), resolve_model(str(checkpoint.path))
    held, wide = engine_of(checkpoint.path), engine_of(checkpoint.path, quantization="none")
    check_answers(as_dense, held, prompts)
    assert answer(held, prompts, NUM_TOKENS) == answer(wide, prompts, NUM_TOKENS)
    assert held.engine.memory.weight_bytes == held_weight_bytes(spec, "float32", "auto")
    assert wide.engine.memory.weight_bytes == held_weight_bytes(spec, "float32", "none")
    assert spec.assumptions == ()


def test_incomplete_files_are_refused_in_a_sentence(tmp_path: Path) -> None:
    for what, sentence in (
        ({"without": "expert_used_count"}, r"says nothing of 'expert_used_count', without which a GGUF of gpt-oss"),
        ({"without": "1.ffn_up_exps.weight"}, r"gpt-oss.gguf holds no tensor 'blk.1.ffn_up_exps.weight'"),
        ({"without": "0.ffn_down_exps.bias"}, r"gpt-oss.gguf holds no tensor 'blk.0.ffn_down_exps.bias'"),
        (
            {"expert_count": 3},
            r"'blk.0.ffn_gate_inp.weight' in gpt-oss.gguf has shape \[4, 128\], the config says \[3, 128\]",
        ),
        (
            {"expert_feed_forward_length": 32},
            r"ffn_gate_exps.0.bias' in gpt-oss.gguf has shape \[64\], the config says \[32\]",
        ),
    ):
        path = make_file("gpt-oss", tmp_path, **what).path
        with pytest.raises(EngineError, match=sentence):
            engine_of(path)


def test_damaged_files_are_refused_in_a_sentence(tmp_path: Path) -> None:
    path = make_file("gpt-oss", tmp_path).path
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3])
    with pytest.raises(EngineError, match="of a GGUF file cannot be read"):
        engine_of(path)
    exponent, half = [255], [0x00, 0x7E]  # of E8M0 and of float16: no numbers
    for name, scale, quantization in (
        ("blk.1.ffn_down_exps.weight", exponent, None),
        ("blk.0.attn_q.weight", half, None),
        ("blk.0.attn_q.weight", half, "none"),
    ):
        path.write_bytes(data)
        tensor = next(each for each in gguf.GGUFReader(path, "r+").tensors if each.name == name)
        tensor.data.reshape(-1)[: len(scale)] = scale
        with pytest.raises(EngineError, match="has scales that are no numbers"):
            engine_of(path, quantization=quantization)
    path.write_bytes(data)
    assert answer(engine_of(path), [[1, 2, 3]], 2)


def test_experts_of_an_architecture_without_them_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(str(path), "qwen2")
    writer.add_expert_count(4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(
        EngineError, match="a GGUF of architecture 'qwen2' with experts, which the engine does not load"
    ):
        engine_of(path)
