"""vLLM's start-up: releases, defaults, the profile run's peak, budget, printed tokens and refusals."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.models import resolve_model
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.errors import UsageError
from kvplan.estimate.vllm.budget import capture_sizes
from kvplan.estimate.vllm.memo import Memo
from kvplan.estimate.vllm.prediction import VllmPrediction, predict_vllm
from kvplan.settings import ServingSettings
from kvplan.units import GIB

LLAMA = resolve_model("llama-3.1-8b")
H100 = find_gpu("h100")
CAMPAIGN = ServingSettings(gpu_memory_utilization=0.95, max_model_len=8192, max_num_batched_tokens=8192)


def predict(version: str = "0.19.0", gpu: str = "h100", **settings: object) -> VllmPrediction:
    return predict_vllm(LLAMA, find_gpu(gpu), ServingSettings(**settings), version)  # type: ignore[arg-type]


def gib(number: int) -> float:
    return round(number / GIB, 2)


def test_llama_on_h100_as_vllm_019_printed_it() -> None:
    """The log: 14.99 GiB weights, 1.89 activation, 0.25 non-torch, 58.11 available, 476,016 tokens, 58.11x."""
    predicted = predict_vllm(LLAMA, H100, CAMPAIGN, "0.19.0")
    rank = predicted.rank
    assert (gib(rank.weight_bytes), gib(rank.non_torch_bytes)) == (14.99, 0.25)
    assert gib(rank.activation.peak_bytes) == pytest.approx(1.89, abs=0.011)
    assert gib(rank.available_kv_bytes) == pytest.approx(58.11, abs=0.011)
    assert predicted.kv_cache_tokens == pytest.approx(476016, rel=0.0005)
    assert predicted.max_concurrency == pytest.approx(58.11, rel=0.0005)
    assert predicted.outcome == "ok"


@pytest.mark.parametrize(
    ("version", "utilization", "sampler", "graphs"),
    [
        ("0.6.3.post1", 0.9, "sort", False),
        ("0.10.2", 0.9, "sort", False),
        ("0.17.1", 0.9, "triton", False),
        ("0.19.2rc1.dev206+g95995bbef", 0.9, "triton", False),
        ("v0.20.2", 0.92, "triton", False),
        ("0.21.0", 0.92, "triton", True),
        ("0.1.dev18496+gd4e0675a7", 0.92, "triton", True),
        ("latest", 0.92, "triton", True),
    ],
)
def test_releases(version: str, utilization: float, sampler: str, graphs: bool) -> None:
    release = vllm_release(version)
    assert (release.gpu_memory_utilization, release.sampler, release.graphs_in_budget) == (utilization, sampler, graphs)


def test_not_a_version() -> None:
    with pytest.raises(UsageError, match="not a version"):
        vllm_release("nineteen")


@pytest.mark.parametrize(
    ("version", "gpu", "tokens", "rows"),
    [
        ("0.19.0", "h100", 8192, 1024),
        ("0.19.0", "a100-80", 2048, 256),
        ("0.19.0", "l40s", 2048, 256),
        ("0.32.0", "b200", 16384, 1024),
        ("0.19.0", "b200", 8192, 1024),
        ("0.6.3", "h100", 2048, 256),
    ],
)
def test_default_batches(version: str, gpu: str, tokens: int, rows: int) -> None:
    settings = predict(version, gpu).settings.serving
    assert (settings.max_num_batched_tokens, settings.max_num_seqs) == (tokens, rows)


def test_first_engine_prefills_whole_prompts() -> None:
    assert predict("0.6.3", max_model_len=20000).settings.serving.max_num_batched_tokens == 20000


@pytest.mark.parametrize(
    ("max_model_len", "activation_gib"),
    [(20000, 2.08), (29000, 3.00)],  # printed by 0.6.4 on a 3090: the decoder decides, 3 inner and 3 hidden widths
)
def test_decoder_peak_grows_with_the_prompt(max_model_len: int, activation_gib: float) -> None:
    rank = predict("0.6.4", "3090", max_model_len=max_model_len).rank
    assert rank.activation.decided_by == "decoder"
    assert rank.activation.peak_bytes / GIB == pytest.approx(activation_gib, abs=0.02)


def test_sampler_decides_with_many_sequences() -> None:
    many = predict(max_num_seqs=1024).rank.activation
    few = predict(max_num_seqs=16, warm_start=True).rank.activation
    assert (many.decided_by, few.decided_by) == ("sampler", "decoder")
    assert few.peak_bytes < many.peak_bytes


def test_printed_tokens_change_their_meaning_with_020() -> None:
    old = predict("0.19.0", max_model_len=10000)
    new = predict("0.20.2", max_model_len=10000)
    assert old.kv_cache_tokens == old.num_blocks * 16
    assert new.kv_cache_tokens == int(new.max_concurrency * 10000)
    assert new.rank.subtracted_graph_bytes == old.rank.subtracted_graph_bytes == 0
    assert predict("0.21.0", max_model_len=10000).rank.subtracted_graph_bytes > 0


def test_graphs_cost_nothing_in_eager_mode() -> None:
    assert predict("0.22.1", enforce_eager=True).rank.cudagraph_bytes == 0


@pytest.mark.parametrize(
    ("largest", "step", "sizes"),
    [(512, 1, 51), (64, 1, 11), (2, 1, 2), (1024, 1, 83), (300, 1, 37), (16, 4, 3), (8, 4, 2), (48, 3, 8)],
)
def test_capture_sizes(largest: int, step: int, sizes: int) -> None:
    """Those of 512, 16 and 8 tokens as logs print them ("PIECEWISE=51", "PIECEWISE=3 (largest=16), FULL=2")."""
    assert len(capture_sizes(largest, step)) == sizes


def test_too_long_is_refused_with_the_longest_that_fits() -> None:
    """Claim 7 of the founding texts: a 32k model on 24 GB stops, naming what would fit."""
    predicted = predict("0.19.0", "3090", max_model_len=131072)
    assert predicted.outcome == "rejected_ctx"
    assert 16 <= predicted.largest_max_model_len < 131072
    assert predicted.missing_bytes > 0
    again = predict("0.19.0", "3090", max_model_len=predicted.largest_max_model_len)
    assert again.outcome == "ok"


def test_weights_alone_do_not_fit() -> None:
    predicted = predict("0.19.0", "4080")
    assert predicted.outcome in ("oom_weights", "oom_kv_init")
    assert predicted.num_blocks == 0
    assert predict("0.19.0", "4060").outcome == "oom_weights"


def test_tensor_parallel_divides_weights_and_cache() -> None:
    one, four = predict(max_model_len=8192), predict(max_model_len=8192, tensor_parallel_size=4)
    assert four.rank.weight_bytes < one.rank.weight_bytes / 3.9
    assert four.bytes_per_block * 4 == one.bytes_per_block


def test_pipeline_parallel_takes_the_smallest_rank() -> None:
    """The log: 1,075,312 tokens on two H100 as two stages; the last one, which samples, decides."""
    predicted = predict_vllm(
        LLAMA,
        H100,
        ServingSettings(
            gpu_memory_utilization=0.95, max_model_len=8192, max_num_batched_tokens=8192, pipeline_parallel_size=2
        ),
        "0.19.0",
    )
    assert predicted.kv_cache_tokens == pytest.approx(1075312, rel=0.002)


def test_heads_must_divide() -> None:
    with pytest.raises(UsageError, match="cannot be divided"):
        predict(tensor_parallel_size=3)


@pytest.mark.parametrize(
    ("name", "value"),
    [("gpu_memory_utilization", 1.5), ("max_model_len", 0), ("max_num_seqs", -1), ("block_size", 0)],
)
def test_impossible_settings(name: str, value: float) -> None:
    with pytest.raises(UsageError, match=name):
        predict(**{name: value})


def test_flashinfer_samples_where_a_release_asks_for_it() -> None:
    """0.53 GiB on an A100 in the 0.10.1 container, 1.4 GiB more in an ordinary installation."""
    qwen = resolve_model("qwen2.5-7b")
    peaks = {}
    for version in ("0.10.1.1", "0.12.0"):
        for installed in (False, True):
            settings = ServingSettings(max_model_len=16384, has_flashinfer=installed)
            rank = predict_vllm(qwen, find_gpu("a100"), settings, version).rank
            peaks[version, installed] = rank.activation.peak_bytes / GIB
    assert peaks["0.10.1.1", True] == pytest.approx(0.53, abs=0.02)
    assert peaks["0.10.1.1", False] == pytest.approx(1.40, abs=0.02)
    assert peaks["0.12.0", True] == peaks["0.12.0", False]


def test_tensors_that_were_reduced_stay_until_the_fix() -> None:
    """Llama 2 70B over 4 GPUs: one tensor of 4096 x 8192 halves for the embedding and two for each of 80 layers."""
    model = resolve_model("llama-2-70b")
    settings = ServingSettings(max_model_len=4096, dtype="float16", tensor_parallel_size=4)
    before, after = (predict_vllm(model, H100, settings, version).rank.activation for version in ("0.2.5", "0.2.7"))
    assert before.decoder_bytes - after.decoder_bytes == (1 + 2 * 80) * 4096 * 8192 * 2


def test_the_first_engine_profiles_one_image_for_each_sequence() -> None:
    """Row V197: vLLM printed 36.63 GiB of activations, 19.86 of weights, and blocks with room for all 40 layers."""
    settings = ServingSettings(max_num_seqs=128, max_model_len=65536, enforce_eager=True)
    rank = predict_vllm(resolve_model("llama-3.2-11b-vision-base"), H100, settings, "0.6.6").rank
    assert (gib(rank.weight_bytes), gib(rank.activation.peak_bytes)) == (19.86, 36.63)
    assert rank.blocks.bytes_per_block == 40 * 16 * 2 * 8 * 128 * 2


def test_experts_take_so_many_tokens_at_once_as_their_release_does() -> None:
    """Buffers of 8 rows a token, two of 7168 wide, for the 8 x 8,192 tokens of all groups; in 0.15 for 16,384."""
    model = resolve_model("deepseek-r1")
    settings = ServingSettings(
        max_num_batched_tokens=8192, max_model_len=8192, data_parallel_size=8, enable_expert_parallel=True
    )
    rank = {each: predict_vllm(model, find_gpu("h200"), settings, each).rank for each in ("0.15.0", "0.32.0")}
    more = rank["0.32.0"].activation.decoder_bytes - rank["0.15.0"].activation.decoder_bytes
    outputs = 65536 * 7168 * 2
    assert more == (65536 - 16384) * 8 * (7168 + 7168) * 2 - outputs


MODELS = ("llama-3.1-8b", "mistral-7b-v0.3", "llama-2-7b", "deepseek-v3")


def predicted(name: str, memo: Memo) -> VllmPrediction:
    """With a ModelSpec of its own, which dies unless the memo keeps it."""
    spec = replace(resolve_model(name))
    settings = ServingSettings(max_model_len=4096, tensor_parallel_size=8, num_speculative_tokens=1)
    return predict_vllm(spec, find_gpu("h200"), settings, "0.33", memo=memo)


def test_a_shared_memo_answers_as_a_fresh_one() -> None:
    shared: Memo = {}
    for name in MODELS * 4:
        assert predicted(name, shared) == predicted(name, {})


def test_a_model_lives_as_long_as_what_is_kept_of_it() -> None:
    """Facts are found by the model's address, which would be another model's once it is gone."""
    memo: Memo = {}
    spec = replace(resolve_model("llama-3.1-8b"))
    predict_vllm(spec, find_gpu("h200"), ServingSettings(max_model_len=4096), "0.33", memo=memo)
    alive, address = weakref.ref(spec), id(spec)
    del spec
    gc.collect()
    found = alive()
    assert found is not None
    assert id(found) == address
    assert memo[address].spec is found
