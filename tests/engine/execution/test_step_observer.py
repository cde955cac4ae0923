"""Watching an engine's steps: what each plans, where its time goes, and the operations of its layers."""

from __future__ import annotations

import time

import pytest
from tiny_configs import llama_config

from kvplan_engine import Engine, EngineConfig, SamplingParams
from kvplan_engine.execution.loop.step_runner import Phase
from kvplan_engine.kernels.cpu.library import LAYER_OPERATIONS
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
