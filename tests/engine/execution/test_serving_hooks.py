"""What a server needs of the engine beside steps: aborting one sample, emptying the prefix cache, times of requests."""

from __future__ import annotations

import subprocess
import sys

import pytest
from engine_answers import hold_blocks, small_llm
from small_models import Checkpoint

import kvplan_engine
from kvplan_engine import Engine, SamplingParams


@pytest.fixture
def engine(checkpoints: dict[str, Checkpoint]) -> Engine:
    return small_llm(checkpoints["gpt2"].path, max_model_len=64).engine


def _params(**fields: object) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 12, "ignore_eos": True, "seed": 1, **fields})  # type: ignore[arg-type]


def _run(engine: Engine) -> None:
    while engine.has_unfinished_requests():
        engine.step()


def test_aborting_one_sample_leaves_its_siblings_their_tokens(engine: Engine) -> None:
    whole = engine.add_request("whole", [5, 6, 7], _params(n=3))
    _run(engine)
    request = engine.add_request("a", [5, 6, 7], _params(n=3))
    for _ in range(4):
        engine.step()
    engine.abort("a", index=1)
    engine.abort("a", index=9)  # one that does not exist is no error
    _run(engine)
    answers = {sequence.index: sequence.output_token_ids for sequence in request.sequences}
    expected = {sequence.index: sequence.output_token_ids for sequence in whole.sequences}
    assert answers[0] == expected[0]
    assert answers[2] == expected[2]
    assert answers[1] == expected[1][: len(answers[1])]
    assert len(answers[1]) < 12
    assert engine.get_stats()["num_used_blocks"] == 0


def test_an_id_is_free_again_when_every_sample_was_aborted(engine: Engine) -> None:
    engine.add_request("a", [5, 6, 7], _params(n=2))
    engine.step()
    engine.abort("a", index=0)
    engine.abort("a", index=1)
    assert not engine.has_unfinished_requests()
    engine.add_request("a", [5, 6, 7], _params())
    _run(engine)


def test_a_request_knows_when_it_was_first_scheduled(engine: Engine) -> None:
    request = engine.add_request("a", [1, 2, 3], _params())
    assert request.first_scheduled_seconds is None
    engine.step()
    first = request.first_scheduled_seconds
    assert first is not None
    assert first >= request.arrival_seconds
    _run(engine)
    assert request.first_scheduled_seconds == first
    assert request.num_preemptions == 0


def test_preemptions_are_counted_by_request(checkpoints: dict[str, Checkpoint]) -> None:
    with small_llm(checkpoints["gpt2"].path, max_model_len=64, block_size=4) as llm:
        engine = llm.engine
        hold_blocks(llm, 24)  # less than two whole answers
        requests = [engine.add_request(str(i), [i + 1] * 20, _params(max_tokens=40)) for i in range(2)]
        _run(engine)
        assert sum(request.num_preemptions for request in requests) == engine.get_stats()["num_preemptions"] > 0


def test_importing_the_package_loads_no_torch() -> None:
    program = (
        "import sys, kvplan_engine.server.runner, kvplan_engine.server.http.application; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True,
                          env={"PYTHONPATH": ":".join(path for path in sys.path if path)})  # fmt: skip
    assert done.stdout == "False\n"


def test_every_name_of_the_package_is_there() -> None:
    assert all(getattr(kvplan_engine, name).__name__ == name for name in kvplan_engine.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        kvplan_engine.Nothing  # type: ignore[attr-defined]  # noqa: B018
