"""The step that a start measures: on a CPU as many layers as have each kind, which take the memory of all."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from tiny_configs import llama_config, own_config

from kvplan_engine import Engine, EngineConfig
from kvplan_engine.execution import profile_step
from kvplan_engine.models import decoder
from kvplan_engine.models.decoder import Decoder
from kvplan_engine.models.decoder_layer import DecoderLayer

_LLAMA = llama_config(num_hidden_layers=12, vocab_size=199, max_position_embeddings=512)
_ONE_DENSE = own_config("one dense layer")
_MIXED = _ONE_DENSE | {"mlp_only_layers": [0, 1, 2, 3, 4, 5]}
CASES = pytest.mark.parametrize(
    ("model", "num_run"), [(_LLAMA, 1), (_ONE_DENSE, 2), (_MIXED, None)], ids=["uniform", "one dense", "half dense"]
)


def _start(model: dict[str, Any], **settings: Any) -> Engine:
    config = EngineConfig(
        model=model, device="cpu", dtype="float32", load_format="dummy", device_memory=256 * 1024**2,
        max_num_batched_tokens=256, max_num_seqs=8, max_model_len=256, **settings,
    )  # fmt: skip
    return Engine(config)


@pytest.fixture
def shortened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers that decoders were shortened to."""
    numbers: list[int] = []
    shorten = Decoder.shortened

    def noted(self: Decoder, num_layers: int) -> Any:
        numbers.append(num_layers)
        return shorten(self, num_layers)

    monkeypatch.setattr(Decoder, "shortened", noted)
    return numbers


@CASES
def test_as_many_layers_run_as_have_each_kind(
    model: dict[str, Any], num_run: int | None, shortened: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    short = _start(model)
    assert shortened == ([] if num_run is None else [num_run]), "two short steps must be no more than one whole"
    monkeypatch.setattr(profile_step, "_decoder_to_shorten", lambda runner: None)
    whole = _start(model)
    for field in ("num_blocks", "overhead_bytes", "activation_bytes"):
        assert getattr(short.memory, field) == getattr(whole.memory, field)
    short.close()
    whole.close()


def test_layers_run_one_by_one_are_shortened_too(monkeypatch: pytest.MonkeyPatch) -> None:
    run: list[DecoderLayer] = []
    feed = DecoderLayer.feed

    def noted(self: DecoderLayer, *arguments: Any) -> None:
        run.append(self)
        feed(self, *arguments)

    monkeypatch.setattr(DecoderLayer, "feed", noted)
    engine = _start(_LLAMA, attention_backend="reference")
    assert engine.decoder.layer_run is None
    assert len(run) == 2, "one layer in each of two steps"
    engine.close()


def test_time_is_scaled_to_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """12 layers of 2 seconds each, between things that take 5."""
    clock: Iterator[float] = iter([0.0, 1.0, 3.0, 7.0] * 2)  # a step's start, its layers' start and end, its end
    for module in (profile_step, decoder):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    measured: list[float] = []
    of_step = profile_step._seconds_of_step

    def noted(*given: Any) -> float:
        measured.append(of_step(*given))
        return measured[-1]

    monkeypatch.setattr(profile_step, "_seconds_of_step", noted)
    engine = _start(_LLAMA)
    monkeypatch.undo()
    assert measured == [5.0 + 12 * 2.0]
    engine.close()
