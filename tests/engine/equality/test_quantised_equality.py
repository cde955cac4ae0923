"""Quantised checkpoints answer as transformers does with the same weights, dequantised to float32; and their bytes.

One engine of each format, with everything at once: ragged prompts, more than may run, longer than a step's budget, in
blocks of three tokens, in a pool that preempts.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from dense_models import DenseCheckpoint
from engine_answers import shrink_pool
from quantised_checkpoints import FORMATS, QuantisedCheckpoint, make_checkpoint
from quantised_mixtures import MIXERS, MIXTURES, make_mixture
from safetensors.torch import load_file, save_file
from small_models import MAMBA, Dense
from test_dense_equality import check_answers, engine_of, prompts_of
from tiny_configs import llama_config

from kvplan.catalog.models import resolve_model
from kvplan.estimate.kvplan.held_weights import held_weight_bytes
from kvplan_engine import LLM, EngineError, SamplingParams
from kvplan_engine.config import EVEN_QUANTIZATIONS, QUANTIZATIONS, EngineConfig
from kvplan_engine.models.device_kernels import reference_kernels, select_kernels


def _check(checkpoint: QuantisedCheckpoint, **settings: object) -> None:
    as_dense = cast(DenseCheckpoint, checkpoint)  # has what the checks look at
    llm = engine_of(checkpoint.path, **settings)
    shrink_pool(llm, num_tokens=99)
    check_answers(as_dense, llm, prompts_of(as_dense))
    assert llm.get_stats()["num_preemptions"] > 0


@pytest.mark.parametrize("name", list(FORMATS))
def test_answers_are_those_of_the_dequantised_weights(name: str, tmp_path: Path) -> None:
    checkpoint = make_checkpoint(name, tmp_path)
    _check(checkpoint)


@pytest.mark.parametrize("name", list(MIXTURES))
def test_experts_answer_as_the_dequantised_ones_and_take_the_predicted_bytes(name: str, tmp_path: Path) -> None:
    checkpoint = make_mixture(name, tmp_path)
    _check(checkpoint)
    spec = resolve_model(str(checkpoint.path))
    counted = engine_of(checkpoint.path, dtype="bfloat16")
    assert counted.engine.memory.weight_bytes == held_weight_bytes(spec, "bfloat16", "auto")
    assert counted.engine.memory.weight_bytes < 0.8 * held_weight_bytes(spec, "bfloat16", "none")
    if name == "gpt-oss":
        _check(checkpoint, attention_backend="reference")
        _check(checkpoint, quantization="none")


@pytest.mark.parametrize("name", list(MIXERS))
def test_latents_and_states_are_projected_in_few_bits(name: str, tmp_path: Path) -> None:
    """What is not held so (kv_b_proj, in_proj_ba) is widened from the same checkpoint."""
    checkpoint = make_mixture(name, tmp_path)
    as_dense = cast(DenseCheckpoint, checkpoint)
    llm = engine_of(checkpoint.path)
    check_answers(as_dense, llm, prompts_of(as_dense))
    spec = resolve_model(str(checkpoint.path))
    assert llm.engine.memory.weight_bytes == held_weight_bytes(spec, "float32", "auto")
    shapes = {name for name in llm.engine.model.weights if ".quantised." in name}
    assert not shapes, "all codes were taken by products"


@pytest.mark.parametrize(("name", "others"), [("bloom", None), ("falcon-h1", MAMBA)])
def test_weights_beside_slopes_and_with_factors_can_be_rounded(
    name: str, others: dict[str, Dense] | None, tmp_path: Path
) -> None:
    """8 bits change a likelihood by little; a factor that was lost, or multiplied into codes, by much."""
    path = DenseCheckpoint(name, tmp_path, others).path
    params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=1)
    found = []
    for quantization in ("none", "int8"):
        llm = engine_of(path, quantization=quantization)
        (answer,) = llm.generate([{"prompt_token_ids": list(range(1, 30))}], params)[0].outputs
        assert answer.logprobs is not None
        found.append((answer.token_ids[0], answer.logprobs[0][answer.token_ids[0]], llm.engine.memory.weight_bytes))
        llm.close()
    (token, likelihood, num_bytes), (rounded_token, rounded_likelihood, rounded_bytes) = found
    assert token == rounded_token and abs(likelihood - rounded_likelihood) < 0.15
    assert rounded_bytes < 0.9 * num_bytes


@pytest.mark.parametrize("name", ["gptq-act-order", "int8"])
def test_plain_torch_answers_the_same(name: str, tmp_path: Path) -> None:
    _check(make_checkpoint(name, tmp_path), attention_backend="reference")


@pytest.mark.parametrize("name", list(FORMATS))
def test_the_planner_predicts_the_bytes(name: str, tmp_path: Path) -> None:
    checkpoint = make_checkpoint(name, tmp_path)
    for dtype in ("float32", "bfloat16"):
        llm = engine_of(checkpoint.path, dtype=dtype)
        assert llm.engine.memory.weight_bytes == held_weight_bytes(resolve_model(str(checkpoint.path)), dtype, "auto")
        llm.engine.close()
    wide = engine_of(checkpoint.path, quantization="none")
    assert wide.engine.memory.weight_bytes == sum(each.nbytes for each in checkpoint.model.parameters())


def test_what_is_allocated_is_what_is_accounted_for(tmp_path: Path) -> None:
    from kvplan_engine.checkpoints.loaders import load_weights, plan_held_weights, read_config
    from kvplan_engine.checkpoints.weights import allocate_weights

    path = make_checkpoint("gptq-act-order", tmp_path).path
    model = read_config(str(path))
    held = plan_held_weights(model, str(path), "auto", None, seed=0)
    weights = allocate_weights(model, torch.float32, torch.device("cpu"), without=held.parameters)
    load_weights(weights, model, str(path), "auto", seed=0)
    dense_bytes = sum(each.nbytes for each in weights.values())
    held.fill(weights, torch.device("cpu"))
    parts = {name: each for name, each in weights.items() if ".quantised." in name and not name.endswith(".book")}
    assert sum(each.nbytes for each in parts.values()) == held.num_bytes
    assert dense_bytes == sum(each.nbytes for name, each in weights.items() if ".quantised." not in name)


def _damage(path: Path, key: str, tensor: torch.Tensor | None) -> None:
    tensors = load_file(path / "model.safetensors")
    if tensor is None:
        del tensors[key]
    else:
        tensors[key] = tensor
    save_file(tensors, path / "model.safetensors")


def test_damaged_checkpoints_are_refused(tmp_path: Path) -> None:
    prefix = "model.layers.1.mlp.down_proj."
    path = make_checkpoint("gptq", tmp_path).path
    scales = load_file(path / "model.safetensors")[prefix + "scales"]
    _damage(path, prefix + "scales", scales * float("nan"))
    with pytest.raises(EngineError, match=r"down_proj.weight' has scales that are no numbers"):
        engine_of(path)
    _damage(path, prefix + "scales", scales[:1])
    with pytest.raises(EngineError, match="down_proj"):
        engine_of(path)
    _damage(path, prefix + "scales", None)
    with pytest.raises(EngineError, match=r"no tensor 'model.layers.1.mlp.down_proj.scales'"):
        engine_of(path)
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[: file.stat().st_size * 2 // 3])
    with pytest.raises(EngineError, match="damaged safetensors"):
        engine_of(path)


def test_a_config_that_is_not_the_checkpoints_is_refused(tmp_path: Path) -> None:
    path = make_checkpoint("gptq", tmp_path).path
    config = json.loads((path / "config.json").read_text())
    for change, message in (
        ({"group_size": 128}, "groups of scales"),
        ({"bits": 3}, "3 bits"),
        ({"quant_method": "quip"}, "quantised by 'quip'"),
    ):
        config["quantization_config"] = FORMATS["gptq"][0] | change
        (path / "config.json").write_text(json.dumps(config))
        with pytest.raises(EngineError, match=message):
            engine_of(path)


def test_quantised_weights_are_not_rounded_again(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="is quantised already"):
        engine_of(make_checkpoint("awq", tmp_path).path, quantization="int8")


LLAMA: dict[str, Any] = llama_config(hidden_size=128, intermediate_size=256, vocab_size=256)
TOKENS = [(7 * k + 3) % 256 for k in range(40)]


def logprobs_of(**settings: Any) -> torch.Tensor:
    """Of each prompt token but the first, and the memory that was accounted for behind them."""
    common: dict[str, Any] = {"device": "cpu", "dtype": "float32", "device_memory": "512MiB", "max_model_len": 64}
    with LLM(LLAMA, load_format="dummy", quantization="int4", group_size=32, **common | settings) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
        (output,) = llm.generate([{"prompt_token_ids": TOKENS}], params)
        memory = llm.engine.memory
    assert output.prompt_logprobs is not None
    found = zip(TOKENS[1:], output.prompt_logprobs[1:], strict=True)
    values = [logprobs[token] for token, logprobs in found if logprobs is not None]
    return torch.tensor([*values, float(memory.weight_bytes), float(memory.activation_bytes), float(memory.num_blocks)])


def test_a_model_answers_as_the_plain_definition_does() -> None:
    """In whole prompts and in chunks of it, and close to what it answers otherwise, from the same bytes."""
    exact, rounded = logprobs_of(), logprobs_of(activation_quantization="int8")
    plain = logprobs_of(activation_quantization="int8", attention_backend="reference")
    assert torch.equal(rounded[-3:], exact[-3:])
    chunked = logprobs_of(activation_quantization="int8", max_num_batched_tokens=16)
    torch.testing.assert_close(chunked[:-3], rounded[:-3], rtol=0, atol=1e-4)
    # One last bit of a sum may decide between two integers.
    assert (plain - rounded)[:-3].abs().max() < 0.01
    assert 1e-4 < (rounded - exact)[:-3].abs().max() < 0.2


def test_codes_that_do_not_count_evenly_are_refused_by_name() -> None:
    for name in QUANTIZATIONS:
        if name in EVEN_QUANTIZATIONS:
            EngineConfig(LLAMA, quantization=name, activation_quantization="int8")
            continue
        with pytest.raises(EngineError, match=f"codes that count evenly, and quantization is '{name}'"):
            EngineConfig(LLAMA, quantization=name, activation_quantization="int8")


def test_a_model_without_such_weights_is_refused() -> None:
    with pytest.raises(EngineError, match="whose codes count evenly, of which this model has none"):
        LLM(LLAMA, load_format="dummy", device="cpu", device_memory="512MiB", activation_quantization="int8")


def test_kernels_of_a_gpu_refuse_it() -> None:
    select_kernels("auto", "cpu", torch.float32).check_rounding()
    with pytest.raises(EngineError, match="the CUDA kernels do not round activations"):
        replace(reference_kernels(), takes_plain_weights=True).check_rounding()


def test_classes_of_transformers_do_not_have_it() -> None:
    with pytest.raises(EngineError, match="activation_quantization is for the engine's own decoder"):
        EngineConfig(LLAMA, model_impl="transformers", activation_quantization="int8")
