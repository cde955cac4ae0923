"""vLLM's second model runner: which models run in it, its profile run and what it keeps; and what came with 0.33."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.models import resolve_model
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.catalog.spec import ModelSpec, QuantizationSpec
from kvplan.catalog.speculation.reading import with_speculation
from kvplan.catalog.vllm_refusals import vllm_refusal
from kvplan.errors import UsageError
from kvplan.estimate.vllm.activation import cublas_bytes
from kvplan.estimate.vllm.kernels import latent_split_bytes
from kvplan.estimate.vllm.prediction import VllmPrediction, predict_vllm
from kvplan.estimate.vllm.runners import in_second_runner, kept_state_bytes
from kvplan.settings import ServingSettings
from kvplan.units import MIB

VOCABULARY = 128256
HIDDEN = 4096


def predict(model: str | ModelSpec = "llama-3.1-8b", version: str = "0.33", gpu: str = "h100-sxm", **settings: object):  # type: ignore[no-untyped-def]
    spec = resolve_model(model) if isinstance(model, str) else model
    found = with_speculation(spec, ServingSettings(max_model_len=8192, **settings))  # type: ignore[arg-type]
    return predict_vllm(found.spec, find_gpu(gpu), found.settings, version)


def runs(model: str | ModelSpec, version: str, **settings: object) -> bool:
    return predict(model, version, gpu="b200", tensor_parallel_size=8, **settings).settings.second_runner


@pytest.mark.parametrize(
    ("model", "first"),
    [
        ("qwen3-8b", "0.22.0"),  # Qwen3ForCausalLM
        ("llama-3.1-8b", "0.23.0"),  # LlamaForCausalLM
        ("deepseek-v2-lite", "0.24.0"),  # DeepseekV2ForCausalLM, a mixture
        ("gemma-3-27b", "0.25.0"),  # neither a mixture nor with states
        ("deepseek-v4-flash", "0.28.0"),
        ("qwen3-30b-a3b", "0.29.0"),  # a mixture that no release lists
        ("qwen3-next-80b-a3b", "0.29.0"),  # states beside attention
    ],
)
def test_each_model_has_the_second_runner_from_one_release_on(model: str, first: str) -> None:
    spec, asked = resolve_model(model), ServingSettings()
    minors = range(21, 34)
    found = [minor for minor in minors if in_second_runner(spec, asked, vllm_release(f"0.{minor}.0"))]
    assert found == [minor for minor in minors if minor >= int(first.split(".")[1])]


def test_quantized_checkpoints_come_with_024() -> None:
    spec = replace(resolve_model("llama-3.1-8b"), quantization=QuantizationSpec("fp8", 8, "tensor"))
    taken = [in_second_runner(spec, ServingSettings(), vllm_release(each)) for each in ("0.23.0", "0.24.0")]
    assert taken == [False, True]


@pytest.mark.parametrize(
    ("drafter", "before", "first"),
    [
        ({"speculative_method": "ngram"}, "0.31.0", "0.32.0"),
        ({"speculative_model": "llama-3.2-1b"}, "0.30.0", "0.31.0"),
    ],
)
def test_a_drafter_that_the_second_runner_lacks_brings_the_first_one(
    drafter: dict[str, object], before: str, first: str
) -> None:
    settings = {"num_speculative_tokens": 4, **drafter}
    assert not runs("llama-3.1-8b", before, **settings)
    assert runs("llama-3.1-8b", first, **settings)


def test_dspark_is_in_the_second_runner_alone() -> None:
    assert runs("deepseek-v4-flash-0731", "0.26.0", speculative_method="dspark", num_speculative_tokens=7)
    assert not runs("deepseek-v4-flash-0731", "0.26.0")


def sampler_rows(version: str, gpu: str = "h100-sxm") -> float:
    """Rows of float32 logits beside the logits themselves, of 1024, and without cuBLAS's workspace."""
    found = predict(version=version, gpu=gpu, max_num_seqs=1024, max_num_batched_tokens=8192)
    workspace = 0 if vllm_release(version).blas_before_budget else cublas_bytes(find_gpu(gpu))
    plain = (8192 + 2 * 1024) * HIDDEN * 2 + 1024 * VOCABULARY * 2
    return (found.rank.activation.sampler_bytes - workspace - plain) / (VOCABULARY * 4)


def test_the_sampler_of_the_profile_run() -> None:
    # The first runner: FlashInfer, and then PyTorch's sampler too, with scratch for 132 multiprocessors.
    assert sampler_rows("0.22.0") == 3 * 1024 + 132
    assert sampler_rows("0.20.0") == 3 * 1024 + 132  # PyTorch's alone
    assert [sampler_rows(each) for each in ("0.23.0", "0.27.0")] == [1024, 1024]
    assert [sampler_rows(each) for each in ("0.28.0", "0.32.0")] == [0, 0]
    assert sampler_rows("0.33.0") == 3 * 1024
    assert sampler_rows("0.33.0", "v100-32gb") == 1024 + 80  # no FlashInfer, 80 multiprocessors


def test_state_of_requests_is_in_the_budget_from_027_on() -> None:
    """Of each request: 4 bytes and two bits for each token, and 4,481 numbers."""
    each = 4 * VOCABULARY + 2 * VOCABULARY // 8 + 4 * 4481
    kept = {version: predict(version=version, max_num_seqs=512).rank.state_bytes for version in ("0.26.0", "0.27.0")}
    assert kept == {"0.26.0": 0, "0.27.0": 512 * each}
    assert predict("qwen3-30b-a3b", "0.28.0").rank.state_bytes == 0  # the first runner
    two = predict(version="0.27.0", max_num_seqs=512, pipeline_parallel_size=2)
    assert two.rank.state_bytes in (0, 512 * each)  # the last stage alone samples


def test_drafters_keep_more() -> None:
    plain = predict(max_num_seqs=256)
    drafting = predict(max_num_seqs=256, speculative_method="ngram", num_speculative_tokens=4)
    more = drafting.rank.state_bytes - plain.rank.state_bytes
    assert more == 256 * 8192 * 4 + 4 * 256 * VOCABULARY // 8  # all tokens of a request, and four more masks
    own = predict("mimo-7b-base", max_num_seqs=256, num_speculative_tokens=1, max_num_batched_tokens=4096)
    spec = resolve_model("mimo-7b-base")
    without = kept_state_bytes(spec, replace(own.settings.serving, num_speculative_tokens=0))
    assert own.rank.state_bytes - without == 4096 * spec.hidden_size * 2 + 256 * 4 * -(-spec.vocab_size // 32)


def graphs(model: str, version: str, gpu: str = "h100-sxm", **settings: object) -> int:
    return int(predict(model, version, gpu, **settings).rank.subtracted_graph_bytes)


def test_the_second_runner_estimates_its_graphs_from_029_on() -> None:
    assert graphs("llama-3.1-8b", "0.22.0") > 0  # the first runner
    assert graphs("llama-3.1-8b", "0.23.0") == graphs("llama-3.1-8b", "0.28.0") == 0
    assert graphs("llama-3.1-8b", "0.28.0", estimate_cudagraphs=True) == 0
    assert graphs("qwen3-30b-a3b", "0.28.0") > 0  # the first runner
    assert graphs("llama-3.1-8b", "0.29.0") == graphs("llama-3.1-8b", "0.22.0")


def test_graphs_of_up_to_1024_tokens_on_blackwell_from_028_on() -> None:
    taken = {each: predict("qwen3-30b-a3b", each, "b200", max_num_seqs=1024) for each in ("0.27.0", "0.28.0")}
    plain = {each: found.rank.cudagraph_bytes - _workspace(found) for each, found in taken.items()}
    assert plain["0.28.0"] / plain["0.27.0"] == pytest.approx(83 / 51, rel=0.02)


def _workspace(found: VllmPrediction) -> int:
    """FlashInfer's, part of the graphs: 16 bytes for each batched token and element of the queries (32 x 128)."""
    return max(394 * MIB, found.settings.serving.max_num_batched_tokens * 32 * 128 * 16)


def test_the_second_runner_profiles_no_encoder_before_027() -> None:
    stages = {
        each: predict("gemma-3-27b", each).rank.activation.encoder_bytes for each in ("0.24.0", "0.25.0", "0.26.0")
    }
    assert stages["0.24.0"] > 0 == stages["0.25.0"] == stages["0.26.0"]
    assert predict("gemma-3-27b", "0.27.0").rank.activation.encoder_bytes == stages["0.24.0"]


def test_the_second_runner_keeps_a_steps_embedded_tokens_of_models_that_see() -> None:
    """EncoderRunner.inputs_embeds, of the first stage (vllm/v1/worker/gpu/mm/encoder_runner.py)."""

    def kept(version: str = "0.28.0", **settings: object) -> int:
        return predict("gemma-3-27b", version, max_num_batched_tokens=4096, **settings).rank.state_bytes

    assert kept() - kept(language_model_only=True) == 4096 * 5376 * 2
    assert kept("0.26.0") == 0


@pytest.mark.parametrize(("gpu", "num_bytes"), [("h100-sxm", 32 * MIB), ("a100-80gb-sxm", 8320 * 1024)])
def test_cublas_is_there_before_the_budget_from_033_on(gpu: str, num_bytes: int) -> None:
    settings = {"max_num_seqs": 8, "max_num_batched_tokens": 8192, "warm_start": True}
    old, new = (predict("llama-3.1-8b", each, gpu, **settings).rank.activation for each in ("0.32.0", "0.33.0"))
    assert old.decided_by == new.decided_by == "decoder"
    assert old.decoder_bytes - new.decoder_bytes == num_bytes


def test_triton_takes_its_latent_workspace_in_the_profile_run_from_033_on() -> None:
    """16 heads of rank 512 and one more number; 8192 tokens are 16 splits of 512, 163,840 at most 2 x 108."""
    old, new = (predict("deepseek-v2-lite", each, "a100-80gb-sxm", max_num_seqs=64) for each in ("0.32.0", "0.33.0"))
    spec, gpu = resolve_model("deepseek-v2-lite"), find_gpu("a100-80gb-sxm")
    of = {
        each.version: latent_split_bytes(spec.layers, gpu, each.settings.serving, vllm_release(each.version))
        for each in (old, new)
    }
    assert of == {"0.32.0": 0, "0.33.0": 64 * 16 * 16 * 513 * 4}
    longest = replace(new.settings.serving, max_model_len=163840)
    release = vllm_release("0.33.0")
    assert latent_split_bytes(spec.layers, gpu, longest, release) == 64 * 16 * 216 * 513 * 4
    assert latent_split_bytes(spec.layers, find_gpu("l40s"), longest, release) > 0
    assert latent_split_bytes(spec.layers, find_gpu("rtx-5090"), longest, release) > 0
    assert latent_split_bytes(spec.layers, find_gpu("h100-sxm"), longest, release) == 0
    assert latent_split_bytes(spec.layers, find_gpu("b200"), longest, release) == 0
    sparse = resolve_model("deepseek-v3.2")
    assert latent_split_bytes(sparse.layers, gpu, longest, release) == 0


def test_the_latent_workspace_is_the_experts_too() -> None:
    few, many = (
        predict("deepseek-v2-lite", "0.33.0", "a100-80gb-sxm", max_num_seqs=seqs, max_num_batched_tokens=2048)
        for seqs in (2, 1024)
    )
    none = predict("deepseek-v2-lite", "0.32.0", "a100-80gb-sxm", max_num_seqs=2, max_num_batched_tokens=2048)
    workspace = cublas_bytes(find_gpu("a100-80gb-sxm"))
    assert few.rank.activation.decoder_bytes == none.rank.activation.decoder_bytes - workspace  # experts need more
    experts = 2048 * 6 * (2048 + 2816) * 2  # six of a token: two buffers, of hidden and of gate and up
    chunks = many.rank.activation.decoder_bytes - few.rank.activation.decoder_bytes
    assert chunks == 1024 * 16 * 16 * 513 * 4 - experts


def test_gpus_that_share_the_hosts_memory() -> None:
    """The GB10 stays a small GPU; another one would be a large one from 0.33 on."""
    other = replace(find_gpu("gb10"), compute_capability="11.0")
    for version, gpu, rows in (
        ("0.33.0", find_gpu("gb10"), 256),
        ("0.32.0", other, 256),
        ("0.33.0", other, 1024),
    ):
        found = predict_vllm(resolve_model("llama-3.1-8b"), gpu, ServingSettings(max_model_len=8192), version)
        assert found.settings.serving.max_num_seqs == rows


def test_the_other_16_bit_cache_is_refused_from_033_on() -> None:
    predict(version="0.32.0", kv_cache_dtype="float16")
    with pytest.raises(UsageError, match="keeps no KV cache in float16 for a model in bfloat16"):
        predict(kv_cache_dtype="float16")
    predict(kv_cache_dtype="float16", dtype="float16")
    predict(kv_cache_dtype="bfloat16")
    release = vllm_release("0.33.0")
    assert vllm_refusal(ServingSettings(kv_cache_dtype="bfloat16"), release) is None  # the model is not known
    assert vllm_refusal(ServingSettings(kv_cache_dtype="bfloat16", dtype="float16"), release) is not None


def test_latent_attention_beside_states_has_blocks_of_128_from_027_on() -> None:
    sizes = {each: predict("kimi-linear-48b-a3b", each).block_size for each in ("0.26.0", "0.27.0")}
    assert sizes["0.26.0"] % 64 == 0 == sizes["0.27.0"] % 128
    assert 0 <= sizes["0.27.0"] - sizes["0.26.0"] < 128


@pytest.mark.parametrize(
    ("fact", "before", "first"),
    [
        ("reserves_null_block", "0.28.0", "0.29.0"),
        ("scaled_cache", "0.19.0", "0.20.0"),
        ("prints_concurrency_tokens", "0.20.0", "0.20.1"),
        ("times_compiled_kernels", "0.11.0", "0.11.1"),
    ],
)
def test_facts_hold_from_the_release_whose_source_has_them_first(fact: str, before: str, first: str) -> None:
    assert [getattr(vllm_release(each), fact) for each in (before, first)] == [False, True]


def test_a_state_in_the_middle_of_a_prompt_has_a_block_of_its_own() -> None:
    def states(model: str, version: str, gpu: str = "h100-sxm", **settings: object) -> int:
        return int(predict(model, version, gpu, **settings).settings.states_per_request)

    mamba, gated = "nemotron-3-nano-30b", "qwen3-next-80b-a3b"
    assert [states(mamba, each) for each in ("0.28.0", "0.32.0")] == [2, 3]
    assert [states(gated, each, "b200") for each in ("0.32.0", "0.33.0")] == [2, 3]
    assert states(gated, "0.33.0", "a100-80gb-sxm") == 2  # Triton's kernel there
    assert states(mamba, "0.33.0", enable_prefix_caching=False) == 1
