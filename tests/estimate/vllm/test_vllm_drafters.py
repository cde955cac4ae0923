"""Drafters under vLLM: weights, caches and the formats of a checkpoint's own multi-token-prediction layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.models import resolve_model
from kvplan.catalog.reader import read_config
from kvplan.catalog.spec import ModelSpec
from kvplan.catalog.speculation.reading import with_speculation
from kvplan.estimate.placed.vllm import place_vllm
from kvplan.estimate.vllm.prediction import VllmPrediction, predict_vllm
from kvplan.estimate.weights import NAMED_FORMATS
from kvplan.settings import ServingSettings
from kvplan.units import GIB

MIXTURE = "qwen3.6-35b-a3b-nvfp4"


def predict(name: str | ModelSpec, version: str = "latest", **settings: Any) -> VllmPrediction:
    spec = resolve_model(name) if isinstance(name, str) else name
    found = with_speculation(spec, ServingSettings(max_model_len=8192, **settings))
    return predict_vllm(found.spec, find_gpu("h200"), found.settings, version)


def more_weights(name: str | ModelSpec, drafter: dict[str, Any], **settings: Any) -> int:
    with_it, without = predict(name, **drafter, **settings), predict(name, **settings)
    return with_it.rank.weight_bytes - without.rank.weight_bytes


def test_a_drafter_is_said_to_be_as_large_as_its_ranks_hold_it() -> None:
    """On an A100 the blocks' scales of fp8 are repeated for Marlin, of the drafter as of the model."""
    asked = ServingSettings(max_model_len=8192, tensor_parallel_size=8)
    gpu, spec = find_gpu("a100-80gb-sxm"), resolve_model("deepseek-v3")
    with_it = with_speculation(spec, replace(asked, num_speculative_tokens=1))
    drafted = place_vllm(with_it.spec, gpu, with_it.settings, "0.29.0").deployment
    more = drafted.weight_bytes - place_vllm(spec, gpu, asked, "0.29.0").deployment.weight_bytes
    assert drafted.drafter_bytes == pytest.approx(more, rel=1e-9)
    small = place_vllm(with_it.spec, find_gpu("h200"), with_it.settings, "0.29.0").deployment
    assert (drafted.drafter_bytes or 0) > 1.01 * (small.drafter_bytes or 0)


@pytest.mark.parametrize("tp", [1, 4])
def test_a_second_model_is_divided_over_the_same_ranks_and_caches_in_the_same_pool(tp: int) -> None:
    settings = {"tensor_parallel_size": tp}
    drafter = {"speculative_model": "llama-3.2-1b", "num_speculative_tokens": 4}
    small = resolve_model("llama-3.2-1b")
    more = more_weights("llama-3.1-70b", drafter, **settings)
    assert more == pytest.approx(2 * small.num_parameters / tp, rel=0.03)
    block = {name: predict(name, **settings).bytes_per_block for name in ("llama-3.1-70b", "llama-3.2-1b")}
    assert predict("llama-3.1-70b", **drafter, **settings).bytes_per_block == sum(block.values())


def test_multi_token_layers_that_a_list_leaves_out_count_unquantized() -> None:
    """``mtp*`` in the list of an NVFP4 checkpoint: 845 million weights of 2 bytes, not of 9 bits / 16."""
    more = more_weights(MIXTURE, {"num_speculative_tokens": 1})
    extra = next(each for each in resolve_model(MIXTURE).extras if each.kind == "multi_token_prediction")
    assert more == pytest.approx(2 * (extra.num_parameters or 0), rel=0.01)


def _eight_bits_but(entries: tuple[str, ...]) -> dict[str, object]:
    """A list of ModelOpt's, or of compressed-tensors, which has regular expressions."""
    if any(entry.startswith("re:") for entry in entries):
        weights = {"num_bits": 8, "type": "float", "strategy": "channel"}
        groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
        return {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": list(entries)}
    return {
        "quant_method": "modelopt",
        "quant_algo": "FP8_PER_CHANNEL_PER_TOKEN",
        "exclude_modules": ["lm_head", *entries],
    }


@pytest.mark.parametrize(
    ("entries", "is_plain"),
    [
        (("mtp",), True),
        (("mtp.layers.0*",), True),
        (("re:.*mtp.*",), True),
        (("re:^mtp",), True),
        (("model.mtp.layers.0",), True),
        (("model.layers.64",), True),
        (("mtp.fc",), False),
        (("mtp.layers.7*",), False),
        ((), False),
    ],
)
def test_every_way_to_name_them(entries: tuple[str, ...], is_plain: bool) -> None:
    config = resolve_model("qwen3.5-27b").raw_config
    spec = read_config({**config, "quantization_config": _eight_bits_but(entries)}, model_id="with a list")
    more = more_weights(spec, {"num_speculative_tokens": 1})
    plain = 2 * 424_699_392
    assert (more > 0.98 * plain) is is_plain
    assert more > 0.5 * plain  # the joining projection is in 16 bits anyway


def test_the_joining_projection_of_deepseek_is_never_quantized() -> None:
    more = more_weights("deepseek-v3", {"num_speculative_tokens": 1}, tensor_parallel_size=8, kv_cache_dtype="fp8")
    extra = next(each for each in resolve_model("deepseek-v3").extras if each.kind == "multi_token_prediction")
    joint = next(tensor for tensor in extra.tensors if tensor.name == "eh_proj")
    in_eight_bits = (extra.num_parameters or 0) - joint.num_elements
    assert more == pytest.approx(in_eight_bits / 8 + 2 * joint.num_elements, rel=0.02)


def test_a_state_for_every_draft_token_is_what_costs_a_hybrid_most() -> None:
    """Qwen 3.6 keeps a recurrent state per draft token and request: with two, more than a third fewer tokens."""
    without, drafting = predict(MIXTURE), predict(MIXTURE, num_speculative_tokens=2)
    assert drafting.kv_cache_tokens < 0.66 * without.kv_cache_tokens


def test_a_convolution_keeps_an_input_for_every_draft_token() -> None:
    """vLLM 0.25.1 with three draft tokens: "Setting attention block size to 800 tokens" (row V177); without, 784."""
    spec = replace(resolve_model("qwen3.5-27b"), quantization=None)
    assert predict(spec, num_speculative_tokens=3).block_size == 800
    assert predict(spec).block_size == 784


@pytest.mark.parametrize("name", ["int4", "awq", "nvfp4"])
def test_tools_that_quantize_leave_multi_token_layers_as_they_are(name: str) -> None:
    spec = replace(resolve_model("qwen3.5-27b"), quantization=NAMED_FORMATS[name])
    assert more_weights(spec, {"num_speculative_tokens": 1}) == pytest.approx(2 * 424_699_392, rel=0.01)


def test_the_drafter_of_nemotron_super_is_5_gib_beside_68() -> None:
    """Mixed precision, its drafter in bfloat16: 8 % of the weights, which a plain NVFP4 reading had left out."""
    name = "nemotron-3-super-120b-a12b-nvfp4"
    more = more_weights(name, {"num_speculative_tokens": 3})
    assert more == pytest.approx(2 * 2_942_325_248, rel=0.01)
    assert predict(name).rank.weight_bytes / GIB == pytest.approx(68.1, abs=0.3)


def test_the_drafter_of_deepseek_v4_sees_its_window_alone() -> None:
    """``compress_ratios`` has one entry more than there are layers: 0. So the pool keeps its groups."""
    without, drafting = (predict("deepseek-v4-pro", tensor_parallel_size=8, num_speculative_tokens=k) for k in (0, 1))
    assert (drafting.num_groups, drafting.bytes_per_block) == (without.num_groups, without.bytes_per_block)
    assert 0.85 * without.num_blocks < drafting.num_blocks < without.num_blocks


def test_looking_tokens_up_costs_its_sampler_alone_in_the_first_model_runner() -> None:
    """The second one keeps all that a request may have on the GPU (test_vllm_runners).

    Qwen3.5-9B with a drafter, 0.25.1 run without a GPU: 7.5 times the 970 MiB of 1024 sequences' logits in float32,
    where the sampler alone has 3.5 and a row for each of 132 multiprocessors.
    """
    with_it = predict("llama-3.1-8b", "0.22.0", speculative_method="ngram", num_speculative_tokens=4).rank
    without = predict("llama-3.1-8b", "0.22.0").rank
    assert with_it.weight_bytes == without.weight_bytes
    more = with_it.activation.sampler_bytes - without.activation.sampler_bytes
    assert more == (4 * 1024 - 132) * 128256 * 4


def test_the_last_of_several_stages_loads_an_embedding_for_the_drafter() -> None:
    one = more_weights("mimo-7b-base", {"num_speculative_tokens": 1})
    spec = resolve_model("mimo-7b-base")
    parts = {"pipeline_parallel_size": 2}
    with_it, without = predict(spec, num_speculative_tokens=1, **parts), predict(spec, **parts)
    # the rank that decides is the one with the drafter
    more = with_it.rank.weight_bytes - without.rank.weight_bytes
    assert more >= one
    assert with_it.rank.weight_bytes / GIB > 7


def test_a_wide_drafter_decides_the_peak_of_a_narrow_model() -> None:
    drafter = {"speculative_model": "llama-3.1-8b", "num_speculative_tokens": 2, "max_num_seqs": 1}
    narrow = predict("llama-3.2-1b", **drafter, max_num_batched_tokens=16384)
    alone = predict("llama-3.2-1b", max_num_seqs=1, max_num_batched_tokens=16384)
    assert narrow.rank.activation.decided_by == "drafter"
    assert narrow.rank.activation.peak_bytes > alone.rank.activation.peak_bytes
