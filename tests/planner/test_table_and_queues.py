"""The plan's table and its line of queues are about one load: what one says the other does not contradict."""

from __future__ import annotations

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.models import resolve_model
from kvplan.planner.answer.queues import queues_of
from kvplan.planner.question.request import PlanRequest
from kvplan.planner.search.plan import make_plan

BIG, SMALL = "llama-3.3-70b", "llama-3.1-8b"


@pytest.mark.parametrize(
    ("model", "gpu", "num_users", "prompt", "answer", "quantization"),
    [
        (BIG, "rtx-3090", 4, 3968, 256, "awq"),
        (BIG, "rtx-3090", 8, 1000, 300, "awq"),
        (BIG, "a100-80gb-pcie", 16, 3968, 256, "published"),
        (BIG, "a100-80gb-pcie", 16, 8000, 64, "fp8"),
        (SMALL, "h100-sxm", 64, 3968, 256, "published"),
        (SMALL, "h100-sxm", 4, 8000, 64, "published"),
        (SMALL, "l4", 8, 2000, 200, "published"),
    ],
)
def test_the_played_ttft_lies_in_the_range_of_the_table(
    model: str, gpu: str, num_users: int, prompt: int, answer: int, quantization: str
) -> None:
    request = PlanRequest(
        num_users=num_users,
        input_tokens=prompt,
        output_tokens=answer,
        longest_context=2 * (prompt + answer),
        gpus=(find_gpu(gpu),),
        quantizations=(quantization,),
    )
    found = make_plan(resolve_model(model), request)
    roomy = [each for each in found.deployments if each.capacity.average_sequences > 1.5 * num_users]
    assert roomy  # where the pool runs full, requests wait for it in the play alone
    for each in roomy:
        queues, table = queues_of(each, found.workload), each.served.speed.ttft_seconds
        assert queues is not None
        assert table.low <= queues.figures.ttft.mean <= 1.1 * table.high, each.name
        assert table.low / 1.1 <= queues.figures.ttft.median <= table.high, each.name
