"""Kinds of mixers: how each is counted and how fast, and a kind that nobody handles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.catalog.spec import LayerSpec, ModelSpec, MoeFeedForward, SoftmaxAttention, SparseIndexer
from kvplan.catalog.tensors import Tensor
from kvplan.errors import KvplanError
from kvplan.estimate.adapters import engine_slot_bytes
from kvplan.estimate.answer import EstimateRequest, make_estimate
from kvplan.estimate.cache_entries import CacheSettings, layer_entries
from kvplan.estimate.kvplan.held_weights import held_weight_bytes
from kvplan.estimate.kvplan.memory import predict
from kvplan.estimate.kvplan.ranks import check_division
from kvplan.estimate.kvplan.settings import EngineDevice
from kvplan.estimate.llamacpp import LlamaServerSettings, predict_llamacpp
from kvplan.estimate.mixers import activation_width, attention_spans, merged_spans, speed_caveats
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speed.latency import prefill_seconds
from kvplan.estimate.speed.steps.step_time import step_shape
from kvplan.estimate.speed.steps.work import model_work
from kvplan.estimate.vllm.prediction import predict_vllm
from kvplan.settings import ServingSettings
from kvplan.units import GIB


@dataclass(frozen=True)
class HolographicAttention:
    """A kind that no question knows."""

    tensors: tuple[object, ...] = ()


@dataclass(frozen=True)
class HolographicFeedForward:
    tensors: tuple[object, ...] = ()


LLAMA = resolve_model("llama-3.1-8b")
UNKNOWN = replace(LLAMA.layers[0], mixer=HolographicAttention())  # type: ignore[arg-type]
V4 = resolve_model("deepseek-v4-flash")


@pytest.mark.parametrize(
    "ask",
    [
        lambda layer: layer_entries(layer, CacheSettings()),
        attention_spans,
        lambda layer: activation_width(layer.mixer, 1),
        lambda layer: predict_vllm(replace(LLAMA, layers=(layer,)), find_gpu("h100")),
        lambda layer: predict(replace(LLAMA, layers=(layer,)), ServingSettings(), EngineDevice(80 * GIB)),
        lambda layer: model_work(replace(LLAMA, layers=(layer,)), GIB, "bfloat16", ParallelLayout(1)),
    ],
)
def test_an_unknown_kind_is_refused_by_name(ask) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(KvplanError, match="HolographicAttention has no answer to"):
        ask(UNKNOWN)


@pytest.mark.parametrize(
    "ask",
    [
        lambda spec: predict_vllm(spec, find_gpu("h100")),
        lambda spec: predict(spec, ServingSettings(), EngineDevice(80 * GIB)),
        lambda spec: step_shape(spec, element_bytes=2, kv_bytes_per_token=1),
    ],
)
def test_an_unknown_feed_forward_is_refused_by_name(ask) -> None:  # type: ignore[no-untyped-def]
    layer = LayerSpec(LLAMA.layers[0].mixer, None, HolographicFeedForward())  # type: ignore[arg-type]
    with pytest.raises(KvplanError, match="HolographicFeedForward has no answer to"):
        ask(replace(LLAMA, layers=(layer,)))


def test_compressed_attention_reads_its_window_what_it_chose_and_the_indexer() -> None:
    """DeepSeek V4 Flash: 64 heads of 512, a window of 128; ratio 4 with an indexer of 64 heads of 128, ratio 128."""
    spans = {(span.stride, span.limit): span.width for span in merged_spans(V4.layers)}
    assert spans == {
        (1, 128): 43 * 2 * 64 * 512,
        (4, 512): 21 * 2 * 64 * 512,
        (4, None): 21 * 64 * 128,
        (128, None): 20 * 2 * 64 * 512,
    }
    at_32k = sum(span.multiply_adds(32768) for span in merged_spans(V4.layers))
    assert at_32k == 64 * 1024 * (43 * 128 + 21 * 512 + 20 * 256) + 21 * 64 * 128 * 8192


def test_its_attention_makes_long_prompts_slower() -> None:
    work = model_work(V4, 40 * GIB, "bfloat16", ParallelLayout(4))
    without = replace(work, attention=())
    long, free = (prefill_seconds(each, find_gpu("b200"), 131072).low for each in (work, without))
    assert long > 1.05 * free


@pytest.mark.parametrize("pool", [1, 8])
@pytest.mark.parametrize("key_format", ["scaled", "plain", "model"])
def test_attention_with_an_index_meets_what_it_chose(
    pool: int, key_format: Literal["scaled", "plain", "model"]
) -> None:
    """MiniMax M3 (a key for each token), Step 5 (for eight of them) and Qwen 4: 16 heads of 128, an index of 4."""
    indexer = SparseIndexer(4, 128, 2048, pool, key_format=key_format)
    layer = LayerSpec(SoftmaxAttention(16, 4, 128, 128, indexer=indexer))
    long, chosen = 1 << 17, 2048 + pool - 1
    adds = sum(span.multiply_adds(long) for span in attention_spans(layer))
    assert adds == 16 * 256 * chosen + 4 * 128 * long / pool
    kv, *_ = layer_entries(layer, CacheSettings())
    assert kv.read_bytes(long) == chosen * 4 * 256 * 2
    assert kv.kept_bytes(long) == long * 4 * 256 * 2
    assert "dense attention to the tokens that it chooses" in " ".join(speed_caveats([layer]))


def test_every_mixer_has_an_activation_width() -> None:
    for name in ("llama-3.1-8b", "deepseek-v3", "deepseek-v4-flash", "jamba-v0.1", "qwen3-next-80b-a3b"):
        widths = {activation_width(layer.mixer, 1) for layer in resolve_model(name).layers if layer.mixer is not None}
        assert widths and min(widths) > 0, name


@pytest.mark.parametrize("command", ["estimate {} --gpu h100-sxm", "plan {} --users 4 --ctx-avg 300 --gpu h100-sxm"])
def test_speeds_say_that_they_leave_out_the_encoder(command: str, ended) -> None:  # type: ignore[no-untyped-def]
    """A plan of Whisper had times as of any model, and 637 million weights that nobody runs."""
    said = "Speeds leave out the encoder and the attention to its output."
    for model, is_said in (("whisper-large-v3", True), ("qwen3-8b", False)):
        printed = " ".join("".join(ended(command.format(model), code=0)).split())
        assert (said in printed) == is_said


@dataclass(frozen=True, slots=True)
class NewKind:
    """A feed-forward part, or a mixer, that nobody has heard of."""

    tensors: tuple[Tensor, ...] = ()


def with_new_part() -> ModelSpec:
    spec = resolve_model("llama-3.2-1b")
    layer = replace(spec.layers[0], feed_forward=NewKind())  # type: ignore[arg-type]
    return replace(spec, layers=(layer, *spec.layers[1:]))


def with_new_mixer() -> ModelSpec:
    spec = resolve_model("llama-3.2-1b")
    layer = replace(spec.layers[0], mixer=NewKind(tensors=spec.layers[0].mixer.tensors))  # type: ignore
    return replace(spec, layers=(layer, *spec.layers[1:]))


ASKED: dict[str, Callable[[], object]] = {
    "bytes held in few bits": lambda: held_weight_bytes(with_new_part(), "bfloat16", "int8"),
    "a mixer's bytes held in few bits": lambda: held_weight_bytes(with_new_mixer(), "bfloat16", "int8"),
    "division over ranks": lambda: check_division(with_new_part(), ServingSettings(tensor_parallel_size=2)),
    "llama.cpp's compute buffer": lambda: predict_llamacpp(with_new_part(), LlamaServerSettings()),
    "slots of the engine": lambda: engine_slot_bytes(with_new_part(), ServingSettings(enable_lora=True), "bfloat16"),
}


@pytest.mark.parametrize("asked", ASKED)
def test_a_new_kind_is_refused(asked: str) -> None:
    with pytest.raises(KvplanError, match="NewKind has no answer to"):
        ASKED[asked]()


def test_a_mixture_without_a_routers_matrix_has_no_width_under_vllm() -> None:
    """It counted as 0 elements wide before."""
    spec = resolve_model("mixtral-8x7b")
    part = spec.layers[0].feed_forward
    assert isinstance(part, MoeFeedForward)
    part = replace(part, tensors=tuple(each for each in part.tensors if each.role != "router"))
    spec = replace(spec, layers=tuple(replace(layer, feed_forward=part) for layer in spec.layers))
    request = EstimateRequest(4096, (find_gpu("h200"),), EngineChoice("vllm"))
    with pytest.raises(KvplanError, match="A mixture without a router's matrix"):
        make_estimate(spec, request)
