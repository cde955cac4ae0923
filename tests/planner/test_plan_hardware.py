"""What a plan knows of machines: racks, slices, shared cards, and which release runs where."""

from __future__ import annotations

import pytest

from kvplan.catalog.devices.gpus import find_gpu, parse_gpu_count
from kvplan.catalog.devices.measured import MeasuredProfiles, load_measured
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.catalog.releases.vllm import last_release_with_kernels, latest_vllm
from kvplan.errors import UsageError
from kvplan.estimate.question import Question, answer_question, notes_on
from kvplan.planner.answer.document import network_notes
from kvplan.planner.choices.layouts import layouts_across_nodes, layouts_in_a_node
from kvplan.planner.launch.manifests import compose_file, kubernetes_manifests
from kvplan.planner.launch.replicas import vllm_processes
from kvplan.planner.question.request import ParallelSizes, PlanRequest
from kvplan.planner.search.plan import PlanAnswer, left_out, make_plan
from kvplan.settings import ServingSettings

BIG = resolve_model("llama-3.3-70b")
DEEPSEEK = resolve_model("deepseek-r1")


def plan(model: str, *gpus: str, **asked: object) -> PlanAnswer:
    profiles = tuple(find_gpu(name) for name in gpus)
    return make_plan(resolve_model(model), PlanRequest(gpus=profiles, **asked), load_measured())  # type: ignore[arg-type]


def test_a_rack_serves_as_nvlink_lets_it() -> None:
    """DeepSeek-R1 for 2,000 users: with 100 Gb/s between the trays the answer was 36 to 67 tokens/s a GPU."""
    found = plan("deepseek-r1", "gb200", num_users=2000, input_tokens=4096, output_tokens=1024, max_gpus=72)
    best = found.deployments[0]
    assert best.verdict.meets and best.num_gpus <= 72
    assert best.output_tokens_per_second[0] / best.num_gpus > 200
    assert best.served.speed.tpot_seconds.high < 0.25
    (note,) = network_notes(found.deployments)
    assert "NVLink joins up to 72 gb200 in nodes of 4" in note


def test_layouts_of_a_rack_fill_trays_with_whole_groups() -> None:
    rack = find_gpu("gb200")
    found = layouts_in_a_node(DEEPSEEK, rack, ParallelSizes(), 72)
    assert {each.num_gpus for each in found} >= {4, 8, 16, 32, 64}
    for each in found:
        group = each.tensor_parallel_size * each.pipeline_parallel_size
        assert each.num_gpus <= 4 or each.num_gpus % 4 == 0
        assert each.data_parallel_size == 1 or group <= 4
    assert not layouts_across_nodes(DEEPSEEK, rack, ParallelSizes(), 72)
    assert all(each.num_gpus > 72 for each in layouts_across_nodes(DEEPSEEK, rack, ParallelSizes(), 144))
    assert max(each.num_gpus for each in layouts_in_a_node(DEEPSEEK, rack, ParallelSizes(num_nodes=2), 72)) == 8


@pytest.mark.parametrize("tp", [4, 8])
def test_each_tray_of_a_rack_has_a_process(tp: int) -> None:
    asked = {"num_users": 64, "average_context": 8192, "sizes": ParallelSizes(tensor=(tp,)), "max_gpus": tp}
    best = plan("llama-3.3-70b", "gb200", **asked).deployments[0]
    processes = vllm_processes(best, BIG.served_id)
    assert len(processes) == tp // 4 and all(each.gpus == (0, 1, 2, 3) for each in processes)
    assert all(("--nnodes 2" in each.command) == (tp == 8) for each in processes)


def test_an_unknown_network_is_said() -> None:
    asked = {
        "num_users": 8,
        "average_context": 4096,
        "max_gpus": 16,
        "sizes": ParallelSizes(tensor=(8,), pipeline=(2,)),
    }
    found = plan("llama-3.3-70b", "l40s", **asked)
    assert any("is not known: 12.5 Gb/s" in note for note in network_notes(found.deployments))


def test_slices_serve_alone_and_are_as_fast_as_their_share() -> None:
    found = plan("qwen3-8b", "h100-3g.40gb", "h100", num_users=8, average_context=4096)
    part, whole = (
        next(each for each in found.deployments if each.choice.gpu.part_of == name) for name in ("h100-sxm", None)
    )
    assert all(each.choice.layout.num_gpus == 1 for each in found.deployments if each.choice.gpu.part_of)
    slow, fast = (each.served.speed.tpot_seconds.middle for each in (part, whole))
    assert 1.5 * fast < slow < 2.5 * fast  # half of the bandwidth, 60 of 132 multiprocessors
    assert part.prediction.settings.serving.max_num_batched_tokens == 2048
    assert any("is a MIG slice: 60 of 132" in note for note in network_notes(found.deployments))


def test_replicas_on_slices_are_started_by_their_ids() -> None:
    best = plan("qwen3-4b", "h100-2g.20gb", num_users=40, average_context=4096, max_gpus=3).deployments[0]
    lines = [each.line for each in vllm_processes(best, "Qwen/Qwen3-4B")]
    assert len(lines) > 1 and lines[1].startswith("CUDA_VISIBLE_DEVICES=$MIG_1 vllm serve")
    assert "nvidia.com/mig-2g.20gb: 1" in kubernetes_manifests(best, "Qwen/Qwen3-4B")
    assert best.num_nodes == 1 and "0:1" in compose_file(best, "Qwen/Qwen3-4B")


def test_slices_are_not_joined() -> None:
    asked = Question(8192, ServingSettings())
    with pytest.raises(UsageError, match="MIG slices have no way to each other"):
        counted = [parse_gpu_count("2xh100-3g.40gb")]
        answer_question(resolve_model("qwen3-8b"), asked, counted, EngineChoice("vllm"), MeasuredProfiles())


def test_what_a_slice_lacks_is_not_laid_on_an_option_that_was_not_given() -> None:
    asked = Question(8192, ServingSettings(quantization="fp8"))
    counted = [parse_gpu_count("h100-1g.10gb")]
    found = answer_question(resolve_model("qwen3-8b"), asked, counted, EngineChoice("vllm"), MeasuredProfiles())
    assert (found.deployments[0].limit or "").startswith("no room for one sequence")


@pytest.mark.parametrize("name", ["v100", "v100-32gb", "v100s"])
def test_a_gpu_is_not_planned_with_a_release_that_has_no_kernels_for_it(name: str) -> None:
    with pytest.raises(UsageError, match=rf"vLLM {latest_vllm()} does not run on .* and .* has 7\.0") as caught:
        plan("qwen3-4b", name, num_users=2)
    assert "vLLM 0.19 is the last one with kernels for it: --engine vllm@0.19" in (caught.value.hint or "")
    best = plan("qwen3-4b", name, num_users=2, engine=EngineChoice("vllm", "0.19")).deployments[0]
    assert best.prediction.version.startswith("0.19")


def test_among_others_such_a_gpu_is_left_out_with_its_last_release() -> None:
    found = plan("qwen3-4b", "v100-32gb", "t4", num_users=2)
    assert {each.choice.gpu.id for each in found.deployments} == {"t4"}
    assert "--engine vllm@0.19" in left_out(found)["v100-32gb"]


def test_an_estimate_sizes_it_and_says_so() -> None:
    counted = [parse_gpu_count("v100-32gb")]
    asked = Question(8192, ServingSettings())
    found = answer_question(resolve_model("qwen3-4b"), asked, counted, EngineChoice("vllm"), MeasuredProfiles())
    assert any(f"vLLM {latest_vllm()} does not run on v100-32gb" in note for note in notes_on(found))
    older = answer_question(resolve_model("qwen3-4b"), asked, counted, EngineChoice("vllm", "0.19"), MeasuredProfiles())
    assert not any("does not run on" in note for note in notes_on(older))


@pytest.mark.parametrize(
    ("capability", "last"),
    [((7, 0), "0.19"), ((7, 5), latest_vllm()), ((9, 0), latest_vllm()), ((6, 1), None)],
)
def test_last_releases(capability: tuple[int, int], last: str | None) -> None:
    assert last_release_with_kernels(capability) == last
