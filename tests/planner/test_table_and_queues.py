"""The closed form that says which loads a plan plays, and the play, are of one mind about a load."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from covering import covering_part

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.devices.kernel_tables import read_kernel_tables
from kvplan.catalog.devices.measured import MeasuredProfiles
from kvplan.catalog.models import resolve_model
from kvplan.planner.choices.basis import PlanBasis
from kvplan.planner.question.request import ParallelSizes, PlanRequest, complete
from kvplan.planner.search.plan import PlanAnswer, make_plan
from kvplan.settings import ServingSettings

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
def test_the_played_ttft_lies_in_the_range_of_the_closed_form(
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
        queues, table = each.queues, each.served.speed.ttft_seconds
        assert queues is not None
        assert table.low <= queues.figures.ttft.mean <= 1.1 * table.high, each.name
        assert table.low / 1.1 <= queues.figures.ttft.median <= table.high, each.name


TABLES = MeasuredProfiles(read_kernel_tables())
ONE, FOUR = ParallelSizes(tensor=(1,)), ParallelSizes(tensor=(1,), pipeline=(4,))
GROUPS = {count: ParallelSizes(tensor=(1,), data=(count,), enable_expert_parallel=True) for count in (2, 4, 8)}
MIXTURE = "qwen3-30b-a3b"


def planned(model: str, gpu: str, sizes: ParallelSizes, prompt: int, answer: int, **load: float) -> PlanAnswer:
    """One replica of this layout, by measured kernels where there are any."""
    request = PlanRequest(
        input_tokens=prompt,
        output_tokens=answer,
        longest_context=2 * (prompt + answer),
        gpus=(find_gpu(gpu),),
        quantizations=("published",),
        kv_cache_dtypes=("auto",),
        sizes=sizes,
        max_gpus=max(sizes.tensor or (1,)) * max(sizes.pipeline or (1,)) * max(sizes.data or (1,)),
        **load,  # type: ignore[arg-type]
    )
    spec = resolve_model(model)
    tokens = PlanBasis(request, complete(request, spec)).default_step_tokens(request.gpus[0])
    return make_plan(spec, replace(request, settings=ServingSettings(max_num_batched_tokens=tokens)), TABLES)


def ratios(found: PlanAnswer) -> tuple[float, float, float]:
    """TTFT, TPOT and throughput of the table over those of the play, of the first deployment."""
    first = found.deployments[0]
    assert first.replicas == 1
    queues, table = first.queues, first.served.middle
    assert queues is not None and queues.figures.tpot is not None and table is not None
    throughput = table.requests_per_second * found.workload.output_tokens
    return (
        table.ttft_seconds / queues.figures.ttft.mean,
        table.tpot_seconds / queues.figures.tpot.mean,
        throughput / queues.output_throughput,
    )


LENGTHS = [(200, 200), (2000, 200), (16000, 100), (8000, 16)]
LAYOUTS = [
    (SMALL, "h100-sxm", ONE),
    (SMALL, "a100-80gb-sxm", ONE),
    (SMALL, "mi300x", ONE),
    (BIG, "a100-80gb-pcie", FOUR),
    *((MIXTURE, "h100-sxm", each) for each in GROUPS.values()),
]


@pytest.mark.parametrize(("layout", "num_users", "lengths"), covering_part(product(LAYOUTS, (1, 3, 16, 48), LENGTHS)))
def test_closed_form_and_play_agree_on_users(
    layout: tuple[str, str, ParallelSizes], num_users: int, lengths: tuple[int, int]
) -> None:
    """TPOT and throughput within 15 %, TTFT within a factor of 1.7: in the play, those answered at once ask at once.

    Of the grid, CI runs a part in which any two values of its three axes meet.
    """
    found = planned(*layout, *lengths, num_users=num_users)
    if not found.deployments:
        pytest.skip("their sequences do not fit")
    ttft, tpot, throughput = ratios(found)
    assert 1 / 1.7 < ttft < 1.7
    assert 1 / 1.15 < tpot < 1.15
    assert 1 / 1.15 < throughput < 1.15


@pytest.mark.parametrize(
    ("model", "sizes", "rate", "prompt", "answer"),
    [
        (SMALL, ONE, 1.5, 8000, 8),
        (SMALL, ONE, 10.0, 2000, 200),
        (SMALL, ONE, 1.0, 16000, 100),
        (MIXTURE, GROUPS[4], 18.0, 200, 200),
        (MIXTURE, GROUPS[4], 1.2, 16000, 100),
        (MIXTURE, GROUPS[8], 6.0, 2000, 200),
    ],
)
def test_closed_form_and_play_agree_on_requests_that_come_at_a_rate(
    model: str, sizes: ParallelSizes, rate: float, prompt: int, answer: int
) -> None:
    """Also where less than one is in progress on average: those that meet each other read and decode side by side."""
    ttft, tpot, throughput = ratios(planned(model, "h100-sxm", sizes, prompt, answer, requests_per_second=rate))
    assert 1 / 1.7 < ttft < 1.7
    assert 1 / 1.25 < tpot < 1.25
    assert throughput == pytest.approx(1.0, rel=0.01)
