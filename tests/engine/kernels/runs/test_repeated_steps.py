"""Arguments of the call for all layers: made once for all steps over the same buffers, and only for these."""

from __future__ import annotations

import pytest
from test_layer_run import GEMMA3, GPT2, make_engine

from kvplan_engine import Engine, SamplingParams
from kvplan_engine.kernels.cpu.step_args import LayersArgs
from kvplan_engine.models.one_call.cpu_layer_run import CpuLayerRun
from kvplan_engine.models.step_space import StepSpace


def _answers(engine: Engine, lengths: tuple[int, ...]) -> dict[str, list[int]]:
    """The tokens of prompts that end after 3, 5, ... tokens, so that the number of rows changes in between."""
    tokens: dict[str, list[int]] = {}
    for index, length in enumerate(lengths):
        prompt = [(11 * index + 5 * i) % 190 for i in range(length)]
        params = SamplingParams(temperature=0.0, max_tokens=3 + 2 * index, ignore_eos=True)
        engine.add_request(str(index), prompt, params)
    while engine.has_unfinished_requests():
        for output in engine.step():
            tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
    return tokens


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each step for which arguments were made."""
    rows: list[int] = []
    make = CpuLayerRun._make_args

    def counted(self: CpuLayerRun, step: StepSpace, num_layers: int | None = None) -> LayersArgs:
        rows.append(step.batch.num_tokens)
        return make(self, step, num_layers)

    monkeypatch.setattr(CpuLayerRun, "_make_args", counted)
    return rows


@pytest.mark.parametrize("config", [GPT2, GEMMA3], ids=["one place", "several places"])
def test_arguments_are_made_once_for_each_number_of_rows(config: dict[str, object], made: list[int]) -> None:
    engine = make_engine(config, "float32", one_call=True)
    start = made.copy()
    assert set(start) == {24}, "steps that the start measures"
    answers = _answers(engine, (6, 9, 4))
    assert made == [*start, 19, 3, 2, 1], "the prompts, then steps of fewer and fewer rows"
    engine.reconfigure(max_num_seqs=4)
    assert _answers(engine, (6, 9, 4)) == answers
    assert made == start + [19, 3, 2, 1] * 2, "a new pool has other addresses"
    engine.close()
    loop = make_engine(config, "float32", one_call=False)
    made.clear()
    assert _answers(loop, (6, 9, 4)) == answers
    assert made == []
    loop.close()


def test_times_are_taken_from_the_step_after_they_were_asked_for(made: list[int]) -> None:
    engine = make_engine(GPT2, "float32", one_call=True)
    made.clear()
    _answers(engine, (8,))
    run = engine.decoder.layer_run
    assert isinstance(run, CpuLayerRun)
    run.time_operations()
    _answers(engine, (8,))
    assert made == [8, 1, 8, 1]
    assert run.operation_seconds()["qkv"] > 0
    engine.close()
