"""Steps that are watched, and the step that a start measures: on a CPU as many layers as have each kind."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from tiny_configs import llama_config, own_config

from kvplan_engine import Engine, EngineConfig, SamplingParams
from kvplan_engine.execution import profile_step
from kvplan_engine.execution.loop.step_runner import Phase
from kvplan_engine.kernels.cpu.library import LAYER_OPERATIONS
from kvplan_engine.models import decoder
from kvplan_engine.models.decoder import Decoder
from kvplan_engine.models.decoder_layer import DecoderLayer
from kvplan_engine.requests.step_plan import StepPlan


class Notes:
    """Everything that an observer is told: for each step its phases, and the tokens of its plan."""

    def __init__(self) -> None:
        self.phases: list[list[Phase]] = []
        self.num_tokens: list[int] = []

    def began(self) -> None:
        self.phases.append([])

    def planned(self, plan: StepPlan) -> None:
        self.num_tokens.append(plan.num_tokens)

    def ended(self, phase: Phase) -> None:
        self.phases[-1].append(phase)


@pytest.fixture
def engine() -> Engine:
    """At most 24 tokens a step, with one prompt of 40 tokens waiting, which gets three more."""
    limits = {"max_num_batched_tokens": 24, "max_num_seqs": 4, "max_model_len": 96, "device_memory": 160 * 1024**2}
    model = llama_config(intermediate_size=64)  # its layers run in one call
    made = Engine(EngineConfig(model=model, device="cpu", dtype="float32", load_format="dummy", **limits))
    made.add_request("a", list(range(40)), SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True))
    return made


def test_an_observer_sees_every_step_until_it_is_taken_away(engine: Engine) -> None:
    notes = Notes()
    engine.observe_steps(notes)
    for _ in range(3):
        engine.step()
    engine.observe_steps(None)
    engine.step()
    assert notes.num_tokens == [24, 16, 1]  # the prompt in two chunks, then a token
    phases = ["schedule", "prepare", "forward", "commit", "sample", "count", "wait", "process"]
    assert notes.phases == [phases] * 3


def test_a_step_without_work_has_neither_a_batch_nor_a_forward(engine: Engine) -> None:
    engine.abort("a")
    notes = Notes()
    engine.observe_steps(notes)
    assert not engine.step()
    assert notes.phases == [["schedule"]]


def test_a_reconfigured_engine_has_no_observer(engine: Engine) -> None:
    engine.abort("a")
    notes = Notes()
    engine.observe_steps(notes)
    engine.reconfigure(max_num_seqs=2)
    engine.step()
    assert notes.phases == []


def test_the_operations_of_the_layers_take_the_time_of_their_call(engine: Engine) -> None:
    run = engine.model.decoder.layer_run
    assert run is not None
    engine.step()
    assert run.operation_seconds() == {}
    run.time_operations()
    began = time.perf_counter()
    engine.step()
    elapsed = time.perf_counter() - began
    seconds = run.operation_seconds()
    assert tuple(seconds) == LAYER_OPERATIONS
    assert all(value > 0 for name, value in seconds.items() if name != "mixture")
    assert seconds["mixture"] == 0.0  # this model's layers have MLPs
    assert sum(seconds.values()) < elapsed


def test_operation_times_add_up_over_steps(engine: Engine) -> None:
    run = engine.model.decoder.layer_run
    assert run is not None
    run.time_operations()
    engine.step()
    first = dict(run.operation_seconds())
    engine.step()
    second = run.operation_seconds()
    assert all(second[name] > first[name] for name in LAYER_OPERATIONS if name != "mixture")


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
