"""The sizes that planners disagree about, to the byte, from the published configs; and vLLM's blocks for them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvplan.catalog.models import resolve_model
from kvplan.catalog.spec import ModelSpec, SoftmaxAttention
from kvplan.errors import UsageError
from kvplan.estimate.answer import EstimateRequest, make_estimate
from kvplan.estimate.cache_entries import CacheSettings
from kvplan.estimate.kv_cache import size_sequence
from kvplan.estimate.sequence_pages import vllm_pages

CONTEXT = 32768
GIB = 2**30


def logical(name: str, tokens: int = CONTEXT, **settings: object) -> int:
    return size_sequence(resolve_model(name), tokens, CacheSettings(**settings)).logical_bytes  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "bytes_per_token"),
    [
        ("llama-3.1-8b", 131_072),
        ("llama-2-7b", 524_288),
        ("llama-13b", 819_200),
        ("gpt2", 36_864),
        ("deepseek-v3", 70_272),
        ("qwen3.5-27b", 65_536),
        ("nemotron-3-nano-30b", 6_144),
        ("jamba-v0.1", 16_384),
    ],
)
def test_bytes_of_one_more_token(name, bytes_per_token):
    assert size_sequence(resolve_model(name), CONTEXT, CacheSettings()).bytes_per_token == bytes_per_token


@pytest.mark.parametrize(
    ("name", "exact", "rounded_gib"),
    [
        ("llama-3.1-8b", 32 * 2 * 8 * 128 * 2 * CONTEXT, 4.000),
        ("deepseek-v3", 61 * (512 + 64) * 2 * CONTEXT, 2.1445),
        ("deepseek-v3.2", 61 * (512 + 64 + 128) * 2 * CONTEXT, 2.1445 + 0.4766),
        ("gemma-3-27b", 2 * 16 * 128 * 2 * (10 * CONTEXT + 52 * 1024), 2.9062),
        ("gpt-oss-20b", 2 * 8 * 64 * 2 * (12 * CONTEXT + 12 * 128), 0.7529),
        ("qwen3-next-80b", 12 * 2 * 2 * 256 * 2 * CONTEXT + 36 * 2 * (32 * 128 * 128 + 3 * 8192), 0.7868),
        ("jamba-v0.1", 4 * 2 * 8 * 128 * 2 * CONTEXT + 28 * 2 * (8192 * 16 + 8192 * 3), 0.5081),
        (
            "gemma-4-26b-a4b",
            5 * 2 * 2 * 512 * 2 * CONTEXT + 25 * 2 * 8 * 256 * 2 * 1024,
            0.820,
        ),
        ("mistral-7b-v0.1", 32 * 2 * 8 * 128 * 2 * 4096, 0.500),
        ("llama-3.2-11b-vision", 2 * 8 * 128 * 2 * (32 * CONTEXT + 8 * 4 * 1601), 4.1954),
    ],
)
def test_one_sequence_of_32k_tokens(name, exact, rounded_gib):
    assert logical(name, encoder_tokens=None) == exact
    assert exact / GIB == pytest.approx(rounded_gib, abs=5e-4)


def test_gpt2_at_its_longest():
    assert logical("gpt2", 1024, model_dtype="float16", kv_dtype="float16") == 36 * 2**20


def test_state_in_float32_where_the_config_says_so_or_the_user_does():
    assert logical("qwen3-next-80b", state_dtype="float32") / GIB == pytest.approx(0.8220, abs=5e-5)
    state = 48 * 48 * 128 * 128 * 4 + 48 * 3 * (2 * 16 * 128 + 48 * 128) * 2
    assert logical("qwen3.5-27b") == 2 * GIB + state
    nano = 23 * 64 * 64 * 128 * 4 + 23 * 3 * (64 * 64 + 2 * 8 * 128) * 2
    assert logical("nemotron-3-nano-30b") == int(0.1875 * GIB) + nano


def test_mistral_when_the_runtime_ignores_the_window():
    spec = resolve_model("mistral-7b-v0.1")
    layers = tuple(replace(layer, mixer=_full(layer.mixer)) for layer in spec.layers)
    full = replace(spec, layers=layers)
    assert size_sequence(full, CONTEXT, CacheSettings()).logical_bytes == 4 * GIB


def _full(mixer: object) -> SoftmaxAttention:
    assert isinstance(mixer, SoftmaxAttention)
    return replace(mixer, window_kind="full", window_tokens=None)


def test_t5_needs_the_encoders_length():
    with pytest.raises(UsageError, match="encoder"):
        logical("t5-base", 128)
    # self attention over 128 tokens and cross attention over 512, in 12 layers of 12 heads of 64
    assert logical("t5-base", 128, encoder_tokens=512) == 12 * 2 * 12 * 64 * 2 * (128 + 512)


def test_whisper_keeps_thirty_seconds_of_audio():
    assert logical("whisper-large-v3", 448) == 32 * 2 * 20 * 64 * 2 * (448 + 1500)


def test_fp8_caches():
    assert logical("llama-3.1-8b", kv_dtype="fp8") == 2 * GIB
    assert logical("deepseek-v3", kv_dtype="fp8_ds_mla") == 61 * 656 * CONTEXT
    assert logical("deepseek-v3.2", kv_dtype="bfloat16", indexer_dtype="fp8") == 61 * (576 * 2 + 132) * CONTEXT


def test_deepseek_v4_keeps_a_window_and_compressed_vectors():
    window = 43 * 512 * 2 * 128
    compressed = 21 * (512 * 2 // 4 + 128 * 2 // 4) + 20 * (512 * 2 // 128)
    assert logical("deepseek-v4-flash") == window + compressed * CONTEXT


def pages(name: str, in_flight: int, tokens: int = CONTEXT, **settings: object):
    spec: ModelSpec = resolve_model(name)
    cache = CacheSettings(**settings)  # type: ignore[arg-type]
    return vllm_pages(spec, cache, context_tokens=tokens, block_size=16, in_flight_tokens=in_flight)


@pytest.mark.parametrize(
    ("name", "tokens", "in_flight", "blocks", "bytes_per_block", "groups"),
    [
        ("llama-3.1-8b", CONTEXT, 2048, 2048, 2_097_152, 1),
        ("gpt2", 1024, 2048, 64, 589_824, 1),
        ("deepseek-v3", CONTEXT, 2048, 2048, 1_124_352, 1),
        ("gemma-3-27b", CONTEXT, 2048, 3206, 1_310_720, 7),
        ("gemma-3-27b", CONTEXT, 8192, 5510, 1_310_720, 7),
    ],
)
def test_admission_in_vllms_blocks(name, tokens, in_flight, blocks, bytes_per_block, groups):
    found = pages(name, in_flight, tokens)
    assert (found.admission_blocks, found.bytes_per_block, found.num_groups) == (blocks, bytes_per_block, groups)


@pytest.mark.parametrize(("in_flight", "gib"), [(2048, 0.800), (8192, 0.941)])
def test_admission_of_gpt_oss(in_flight, gib):
    found = pages("gpt-oss-20b", in_flight)
    assert found.num_groups == 2
    assert found.admission_bytes / GIB == pytest.approx(gib, abs=5e-4)


def test_three_figures_of_gemma_are_three_different_ones():
    found = pages("gemma-3-27b", 2048)
    assert logical("gemma-3-27b") < found.paged_bytes < found.admission_bytes
    assert found.paged_bytes / GIB == pytest.approx(2.976, abs=1e-3)
    assert found.admission_bytes / GIB == pytest.approx(3.914, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "state_dtype", "block_size"),
    [("qwen3-next-80b", None, 544), ("qwen3-next-80b", "float32", 1056), ("jamba-v0.1", None, 80)],
)
def test_attention_blocks_grow_to_the_state(name, state_dtype, block_size):
    assert pages(name, 2048, state_dtype=state_dtype).block_size == block_size


TOKENS = 32_768
FP8_BLOCK = 128**2
MXFP4_EXPERTS = 24 * 32 * 3 * 2880 * 2880

WEIGHT_BYTES = {
    "llama-3.1-8b": 8_030_261_248 * 2,
    "qwen3-32b": 32_762_123_264 * 2,
    "phi-3.5-mini": 3_821_079_552 * 2,
    "gpt-oss-20b": MXFP4_EXPERTS * 4.25 / 8 + (20_914_757_184 - MXFP4_EXPERTS) * 2,
    # 1 B for each fp8 parameter, 2 B for what stays bfloat16, 4 B of scale for a block
    "deepseek-v3": 671_026_419_200 + 1_960_809_984 + 669_065_609_216 / FP8_BLOCK * 4,
    "deepseek-v3.2": 671_877_944_064 + 1_960_825_600 + 669_917_118_464 / FP8_BLOCK * 4,
}


@pytest.mark.parametrize("model", WEIGHT_BYTES)
def test_weights_are_those_counted_by_hand(model: str) -> None:
    found = make_estimate(resolve_model(model), EstimateRequest(TOKENS))
    # scales of blocks at the edges of a matrix are rounded up, which the figures here leave out
    assert found.weights.total_bytes + found.extra_weight_bytes == pytest.approx(WEIGHT_BYTES[model], rel=1e-5)
