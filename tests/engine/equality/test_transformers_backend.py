"""Models in their class of transformers, over kvplan's pool: which are taken so, and what they answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from small_models import SIZES
from transformers_checkpoints import check_answers, check_class, config_of, engine_of, small_checkpoint, tabled_models

from kvplan_engine import LLM, EngineError, SamplingParams
from kvplan_engine.config import EngineConfig
from kvplan_engine.models.loaded_model import LoadedModel
from kvplan_engine.transformers_backend import paged_attention, ways
from kvplan_engine.transformers_backend.model import TransformersDecoder, TransformersModel
from kvplan_engine.transformers_backend.ways import chosen_implementation

CONFIG: dict[str, Any] = SIZES | {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp("llama")
    return small_checkpoint(transformers.LlamaConfig(**SIZES), folder), folder


def way_of(llm: LLM) -> str:
    decoder = llm.engine.decoder
    assert isinstance(decoder, TransformersDecoder)
    return decoder.way.name


# ---- which implementation


def test_auto_is_native_where_the_decoder_can() -> None:
    assert chosen_implementation(EngineConfig(CONFIG), CONFIG) == "native"
    assert chosen_implementation(EngineConfig(CONFIG, model_impl="transformers"), CONFIG) == "transformers"


def _lacks_everything(model: object) -> None:
    raise EngineError("the engine does not run it yet.")


def test_auto_takes_transformers_where_the_decoder_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways, "refuse_unknown_parts", _lacks_everything)
    assert chosen_implementation(EngineConfig(CONFIG), CONFIG) == "transformers"


def test_auto_says_what_the_decoder_lacks_where_neither_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways, "refuse_unknown_parts", _lacks_everything)
    of_its_own = CONFIG | {"architectures": ["BaichuanForCausalLM"], "num_key_value_heads": None}
    with pytest.raises(EngineError, match="does not run it yet"):
        chosen_implementation(EngineConfig(of_its_own), of_its_own)
    with pytest.raises(EngineError, match="does not run it yet"):
        chosen_implementation(EngineConfig(CONFIG, enable_lora=True), CONFIG)


@pytest.mark.parametrize(
    "setting", [{"load_format": "none"}, {"load_format": "dummy", "dummy_layers": "shared"}, {"enable_lora": True}]
)
def test_what_only_the_decoder_has_is_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(EngineError, match="engine's own decoder"):
        EngineConfig(CONFIG, model_impl="transformers", **setting)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"architectures": ["BaichuanForCausalLM"], "num_key_value_heads": None}, "no class BaichuanForCausalLM"),
        (
            {
                "architectures": ["Phi3ForCausalLM"],
                "model_type": "phi3",
                "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8},
                "original_max_position_embeddings": 64,
            },
            "longrope",
        ),
    ],
)
def test_what_has_no_fitting_class_is_refused(change: dict[str, Any], sentence: str) -> None:
    config = CONFIG | change
    with pytest.raises(EngineError, match=sentence):
        chosen_implementation(EngineConfig(config, model_impl="transformers"), config)


def test_gguf_files_are_the_decoders(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="no GGUF"):
        ways.find_class(str(tmp_path / "model.gguf"))


# ---- weights


def test_a_checkpoint_that_lacks_a_tensor_is_refused(checkpoint: tuple[Any, Path], tmp_path: Path) -> None:
    _, folder = checkpoint
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.down_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(EngineError, match=r"lacks 'model\.layers\.1\.mlp\.down_proj\.weight'"):
        engine_of(tmp_path)


def test_other_parameters_than_described_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    monkeypatch.setattr("kvplan_engine.transformers_backend.model.num_parameters", lambda model: 1)
    with pytest.raises(EngineError, match="parameters, and 1 as the engine describes it"):
        engine_of(path)


def test_dummy_weights_are_the_same_for_the_same_seed(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    first, again, other = (engine_of(path, load_format="dummy", seed=seed).engine.model for seed in (1, 1, 2))
    assert isinstance(first, TransformersModel) and first.is_dummy
    assert first.weight_fingerprint == again.weight_fingerprint != other.weight_fingerprint


def test_weights_and_blocks_are_accounted_as_natively(checkpoint: tuple[Any, Path]) -> None:
    _, folder = checkpoint
    through, native = (engine_of(folder, model_impl=name).engine for name in ("transformers", "native"))
    assert isinstance(native.model, LoadedModel) and isinstance(through.model, TransformersModel)
    assert through.model.weight_bytes == native.model.weight_bytes
    assert through.memory.block_bytes == native.memory.block_bytes
    assert through.memory.activation_bytes < native.memory.activation_bytes  # its layers bring their own


# ---- steps


def test_a_way_that_gives_other_logits_is_not_taken(
    checkpoint: tuple[Any, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, folder = checkpoint
    assert way_of(engine_of(folder)) == "all sequences in one forward pass"
    right = paged_attention.PagedAttention.__call__

    def wrong(self: Any, module: Any, query: torch.Tensor, *states: torch.Tensor, **options: Any) -> torch.Tensor:
        return right(self, module, 0.5 * query, *states, **options)

    monkeypatch.setattr(paged_attention.PagedAttention, "__call__", wrong)
    llm = engine_of(folder)
    assert way_of(llm) == "one sequence after the other"
    check_answers(model, llm, (9, 30), 4)


def test_a_class_that_no_way_is_right_for_is_refused(tmp_path: Path) -> None:
    """transformers limits the steps of Mamba 2 in prompts, and forgets it where it decodes."""
    values = SIZES | {"hidden_size": 48, "attn_layer_indices": [1], "time_step_limit": [0.3, 0.9]}
    sizes = {"mamba_n_heads": 6, "mamba_d_head": 16, "mamba_d_state": 24, "mamba_n_groups": 2, "mamba_chunk_size": 8}
    small_checkpoint(transformers.BambaConfig(**values, **sizes), tmp_path)
    with pytest.raises(
        EngineError, match="does not run through transformers: its logits over the pool differ"
    ) as caught:
        engine_of(tmp_path)
    assert caught.value.hint is not None and "load_format='none'" in caught.value.hint


def test_layers_that_attend_by_themselves_are_counted(checkpoint: tuple[Any, Path]) -> None:
    _, folder = checkpoint
    llm = engine_of(folder)
    model = llm.engine.model
    assert isinstance(model, TransformersModel)
    attention = paged_attention.PagedAttention(model.config, model.attention)
    attention.begin(None, None)  # type: ignore[arg-type]
    with pytest.raises(EngineError, match="0 of 2 attention layers"):
        attention.end()


def test_prompt_logprobs_equal_the_decoders(checkpoint: tuple[Any, Path]) -> None:
    _, folder = checkpoint
    params = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True, prompt_logprobs=1)
    prompt = [{"prompt_token_ids": list(range(5, 40))}]
    found = []
    for name in ("transformers", "native"):
        (output,) = engine_of(folder, model_impl=name).generate(prompt, params)
        assert output.prompt_logprobs is not None
        found.append([None if each is None else max(each.values()) for each in output.prompt_logprobs])
    assert found[0] == pytest.approx(found[1], abs=1e-4)


def test_preempted_sequences_are_swapped_and_come_back(checkpoint: tuple[Any, Path]) -> None:
    model, folder = checkpoint
    llm = engine_of(folder, swap_space=1 << 20, preemption_mode="swap")
    check_answers(model, llm, (60, 50, 40, 30), 8)
    assert llm.get_stats()["num_preemptions"] > 0
    assert llm.get_stats()["recomputed_tokens"] == 0


def test_bfloat16_is_within_its_own_rounding(checkpoint: tuple[Any, Path]) -> None:
    _, folder = checkpoint
    llm = engine_of(folder, dtype="bfloat16")
    assert way_of(llm) == "all sequences in one forward pass"
    assert llm.engine.model.weight_bytes == 2 * sum(
        each.numel() for each in load_file(folder / "model.safetensors").values()
    )


TRANSFORMERS = tuple(int(number) for number in transformers.__version__.split(".")[:2])
TOGETHER = "all sequences in one forward pass"
ONE_BY_ONE = "one sequence after the other"
BY_TOKEN = "one sequence after the other, token by token"
MODELS = {
    "gpt2": TOGETHER,  # learned positions
    "opt": TOGETHER,  # layers within a part of their own
    "gemma3": TOGETHER,  # windows
    "gemma4-shared": TOGETHER,  # layers that read others' keys and values
    "gpt-oss": TOGETHER,  # sinks, experts
    "granite": TOGETHER,  # scaled logits
    "phi": TOGETHER,
    "qwen3_moe": TOGETHER,
    "bloom": ONE_BY_ONE,  # slopes
    "falcon-40b": ONE_BY_ONE,  # caches each KV head several times
    "gptj": TOGETHER if TRANSFORMERS >= (5, 24) else ONE_BY_ONE,  # attended by itself before
    "Llama4ForCausalLM": ONE_BY_ONE,  # chunks
    "deepseek_v3": ONE_BY_ONE,  # latents
    "lfm2": ONE_BY_ONE,  # convolutions
    "falcon-h1": ONE_BY_ONE,  # a state beside attention
    "olmo_hybrid": ONE_BY_ONE,  # a recurrent state
    "jamba": BY_TOKEN,  # goes on from a state only so
}


@pytest.mark.parametrize("name", MODELS)
def test_answers_are_those_of_the_class(name: str, tmp_path: Path) -> None:
    llm = check_class(config_of(*tabled_models()[name]), tmp_path / "model", lengths=(1, 17, 40, 33), num_tokens=5)
    decoder = llm.engine.decoder
    assert isinstance(decoder, TransformersDecoder)
    assert decoder.way.name == MODELS[name]
    assert llm.get_stats()["prefix_cache_hits"] > 0
