"""All layers in one call against the decoder's own loop: the same tokens and the same pool, bit for bit.

Which of the two runs depends on the CPU. Our packed product computes float32 everywhere, and bfloat16 on AVX2 and on
AVX-512, in its dot products where it has them (``avx512_bf16``) and in AMX's tiles: there all layers are one call. With
AMX and kernels from a compiler that does not know it, bfloat16 products are oneDNN's and the loop runs. The tests
decide for both kinds of CPU whatever the machine is, so that each path runs on each machine that can run it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from tiny_configs import gpt2_config, llama_config, own_config

from kvplan_engine import Engine, EngineConfig, SamplingParams
from kvplan_engine.kernels.cpu.library import load_kernels
from kvplan_engine.kernels.cpu.packed import PackedWeight
from kvplan_engine.layers import linear
from kvplan_engine.layers.linear import OneDnnLinear
from kvplan_engine.layers.projection import Projection
from kvplan_engine.models.decoder_layer import DecoderLayer

_SHARED = {"vocab_size": 199, "max_position_embeddings": 96, "torch_dtype": "float32"}
GPT2 = gpt2_config(n_embd=48, n_layer=3, n_positions=96, **_SHARED)
LLAMA = llama_config(
    hidden_size=48, intermediate_size=64, num_hidden_layers=3, num_attention_heads=6, head_dim=8, **_SHARED
)

MODELS = {
    "gpt2": GPT2,
    "llama": LLAMA,
    "qwen3": LLAMA | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"},  # queries and keys normed by head
    # norms behind attention and MLP; windows, so that layers lie in several blocks of a bundle
    "gemma3": own_config("gemma 3 in one call"),
    "qwen3-moe": own_config("qwen 3 moe in one call"),  # the first layer an MLP, then mixtures
    # sinks of each layer's own, biases, a clipped activation in a mixture
    "gpt-oss": own_config("gpt-oss in one call"),
}


def start_engine(config: dict[str, object], dtype: str) -> Engine:
    """An engine with 24 tokens a step and a pool of zeros."""
    limits = {"max_num_batched_tokens": 24, "max_num_seqs": 4, "max_model_len": 96, "device_memory": 160 * 1024**2}
    engine = Engine(EngineConfig(model=config, device="cpu", dtype=dtype, load_format="dummy", **limits))
    assert engine.serving.runner.kv is not None
    engine.serving.runner.kv.planes.zero_()
    return engine


def make_engine(config: dict[str, object], dtype: str, one_call: bool) -> Engine:
    """``start_engine`` with its layers in one call or in a loop; only for a dtype whose products are our kernels'."""
    engine = start_engine(config, dtype)
    decoder = engine.model.decoder
    assert decoder.layer_run is not None, "this model's layers are all the kernels', yet the slow loop runs"
    if not one_call:
        decoder.layer_run = None
    return engine


@pytest.fixture
def amx(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    """Makes the engine believe that the CPU has, or lacks, AMX."""
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: request.param, raising=False)
    linear.packs_for_amx.cache_clear()
    yield request.param
    linear.packs_for_amx.cache_clear()


def _run(config: dict[str, object], dtype: str, one_call: bool) -> tuple[list[tuple[str, list[int]]], torch.Tensor]:
    """Tokens of each step, and the pool afterwards. Prompts of different lengths, one longer than a step."""
    engine = make_engine(config, dtype, one_call)
    for index, length in enumerate((3, 40, 17, 1)):
        prompt = [(7 * index + 3 * i) % 190 for i in range(length)]
        engine.add_request(str(index), prompt, SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True))
    tokens = []
    while engine.has_unfinished_requests():
        tokens += [(output.request_id, list(output.new_token_ids)) for output in engine.step()]
    kv = engine.serving.runner.kv.planes.view(engine.serving.runner.kv.dtype).clone()
    engine.close()
    return tokens, kv


@pytest.mark.parametrize("amx", [False], ids=["no-amx"], indirect=True)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
def test_one_call_computes_what_the_loop_computes(config: dict[str, object], dtype: str, amx: bool) -> None:
    one_call, loop = _run(config, dtype, True), _run(config, dtype, False)
    assert one_call[0] == loop[0]
    assert torch.equal(one_call[1], loop[1])


def _products(layer: DecoderLayer) -> tuple[Projection, ...]:
    return layer.attention.qkv, layer.attention.output, layer.feed_forward.up, layer.feed_forward.down


def onednn_packs_bfloat16() -> bool:
    """False on AVX2 (also with ONEDNN_MAX_CPU_ISA=AVX2), where claiming to have AMX must change nothing."""
    try:
        torch.ops.mkldnn._reorder_linear_weight(torch.ones(16, 32, dtype=torch.bfloat16), 16)
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize("amx", [False, True], ids=["no-amx", "amx"], indirect=True)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("config", [GPT2, LLAMA], ids=["gpt2", "llama"])
def test_what_runs_where(config: dict[str, object], dtype: str, amx: bool) -> None:
    """Ours in one call; oneDNN layer by layer for bfloat16 where there is AMX and our kernels do not use it."""
    engine = start_engine(config, dtype)
    decoder = engine.model.decoder
    kinds = {type(each) for layer in decoder._layers for each in _products(layer)}
    is_onednn = dtype == "bfloat16" and amx and onednn_packs_bfloat16() and not load_kernels().has_tiles
    assert kinds == {OneDnnLinear if is_onednn else PackedWeight}
    assert (decoder.layer_run is None) == is_onednn
    engine.close()


@pytest.fixture
def without_tiles() -> Iterator[None]:
    """Where this machine has AMX, ours multiply as elsewhere."""
    load_kernels().use_tiles(0)
    yield
    load_kernels().use_tiles(1)


@pytest.mark.usefixtures("without_tiles")
@pytest.mark.parametrize("config", [GPT2, LLAMA], ids=["gpt2", "llama"])
def test_onednns_products_agree_with_ours(config: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """bfloat16 through oneDNN, where this machine can run that, against our own product: the same pool of K and V."""
    pools = []
    for has_amx in (True, False):
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda has_amx=has_amx: has_amx)
        linear.packs_for_amx.cache_clear()
        engine = start_engine(config, "bfloat16")
        engine.add_request("0", [3, 14, 15, 92, 65], SamplingParams(temperature=0.0, max_tokens=1))
        engine.step()
        pools.append(engine.serving.runner.kv.planes.view(engine.serving.runner.kv.dtype).float())
        engine.close()
    linear.packs_for_amx.cache_clear()
    assert pools[0].abs().max() > 0
    torch.testing.assert_close(pools[0], pools[1], rtol=2**-6, atol=2**-6 * pools[0].abs().max().item())
