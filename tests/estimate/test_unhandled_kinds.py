"""A kind of layer that a formula does not know is refused by name, and never counted as nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.catalog.spec import ModelSpec, MoeFeedForward
from kvplan.catalog.tensors import Tensor
from kvplan.errors import KvplanError
from kvplan.estimate.adapters import engine_slot_bytes
from kvplan.estimate.answer import EstimateRequest, make_estimate
from kvplan.estimate.kvplan.held_weights import held_weight_bytes
from kvplan.estimate.kvplan.undivided import check_division
from kvplan.estimate.llamacpp import LlamaServerSettings, predict_llamacpp
from kvplan.settings import ServingSettings


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
