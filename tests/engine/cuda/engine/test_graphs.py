"""Decode steps as graphs: sizes, padding, order of capture, what a replay computes, and what it takes."""

from __future__ import annotations

import gc

import pytest
import torch
from engine_answers import answer, random_prompts
from fake_gpu import MIB, FakeGpu, take_gpu
from small_models import greedy, wide_gpt2

from kvplan_engine import LLM, OutOfDeviceMemory
from kvplan_engine.attention.layer_cache import ONLY_TABLE
from kvplan_engine.execution.graphs import (
    PaddedBatches,
    StepGraphs,
    captured_sizes,
    ladder_of,
    prompt_ladder_of,
    smallest_size,
)
from kvplan_engine.memory.breakdown import BufferSpec
from kvplan_engine.memory.workspace import Workspace
from kvplan_engine.models.step_batch import GraphSize


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return take_gpu(monkeypatch, FakeGpu())


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, torch.nn.Module]:
    path = tmp_path_factory.mktemp("wide")
    return str(path), wide_gpt2(path)


def start(path: str, **settings: object) -> LLM:
    defaults: dict[str, object] = {"max_num_batched_tokens": 32, "max_num_seqs": 5, "max_model_len": 64}
    return LLM(path, **(defaults | {"dtype": "float32", "enable_prefix_caching": False} | settings))


# ---- sizes and padding


@pytest.mark.parametrize(
    ("max_num_seqs", "sizes"),
    [
        (1, (1,)),
        (5, (1, 2, 4, 5)),
        (8, (1, 2, 4, 8)),
        (40, (1, 2, 4, 8, 16, 32, 40)),
        (64, (1, 2, 4, 8, 16, 32, 48, 64)),
    ],
)
def test_the_ladder(max_num_seqs: int, sizes: tuple[int, ...]) -> None:
    assert ladder_of(max_num_seqs) == sizes


def test_the_ladder_ends_at_512() -> None:
    assert ladder_of(256)[-2:] == (240, 256)
    assert ladder_of(4096)[-2:] == (496, 512)
    assert len(ladder_of(512)) == 4 + 32


def test_the_ladder_of_steps_with_prompts() -> None:
    assert prompt_ladder_of(8192) == (16, 32, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512)
    assert prompt_ladder_of(100) == (16, 32, 64, 96, 100)
    assert prompt_ladder_of(7) == (7,)


def test_the_smallest_step_that_holds_tokens_and_sequences_is_taken() -> None:
    sizes = captured_sizes(40, 8192, with_prompts=True)
    found = [
        smallest_size(sizes, num_tokens, num_seqs, has_prompts=has_prompts)
        for num_tokens, num_seqs, has_prompts in [
            (3, 3, False),
            (40, 40, False),
            (41, 41, False),
            (17, 5, True),
            (40, 40, True),
            (512, 40, True),
            (513, 1, True),
        ]
    ]
    assert found == [
        GraphSize(4, 4),
        GraphSize(40, 40),
        None,
        GraphSize(32, 32, True),
        GraphSize(64, 40, True),
        GraphSize(512, 40, True),
        None,
    ]
    assert smallest_size(captured_sizes(40, 8192, with_prompts=False), 17, 5, has_prompts=True) is None


def small_workspace(rows: int) -> Workspace:
    specs = [BufferSpec(name, (rows,), "int64") for name in ("token_ids", "positions", "slots")]
    specs += [BufferSpec("block_tables", (rows, 3), "int32"), BufferSpec("seq_lens", (rows,), "int32")]
    workspace = Workspace([*specs, BufferSpec("query_starts", (rows + 1,), "int32")], torch.device("cpu"))
    for name in ("token_ids", "positions", "slots", "block_tables", "seq_lens", "query_starts"):
        workspace[name].fill_(77)  # what an earlier step left behind
    return workspace


def padded(workspace: Workspace) -> tuple[PaddedBatches, torch.Tensor]:
    """With the rows that are sampled."""
    rows = torch.full_like(workspace["token_ids"], 77)
    return PaddedBatches(workspace, [ONLY_TABLE], rows), rows


def test_padding_rows_read_and_write_nothing() -> None:
    workspace = small_workspace(8)
    batches, rows = padded(workspace)
    batches.fill(GraphSize(5, 5))
    assert workspace["slots"].tolist() == [-1] * 5 + [77] * 3
    assert workspace["seq_lens"].tolist() == [0] * 5 + [77] * 3
    assert workspace["query_starts"].tolist() == [0] * 6 + [77] * 3, "no sequence has any token"
    assert workspace["token_ids"].tolist() == workspace["positions"].tolist() == [0] * 5 + [77] * 3
    assert rows.tolist() == [0] * 5 + [77] * 3
    batches.fill(GraphSize(7, 4, has_prompts=True))
    assert workspace["slots"].tolist() == [-1] * 7 + [77]
    assert workspace["query_starts"].tolist() == [0] * 6 + [77] * 3
    assert batches.batch(GraphSize(7, 4, has_prompts=True)).num_filled.tolist() == [0]


def test_the_largest_is_captured_first_each_after_one_run_in_one_memory() -> None:
    device, ran = FakeGpu(graph_bytes=3 * MIB), []
    batches, _ = padded(small_workspace(16))
    graphs = StepGraphs(device, batches, captured_sizes(4, 16, with_prompts=True))
    assert graphs.size_for(1, 1, has_prompts=False) is None
    graphs.capture(lambda batch: ran.append((batch.num_tokens, batch.num_seqs)))
    assert ran == [(16, 4)] * 2 + [(4, 4)] * 2 + [(2, 2)] * 2 + [(1, 1)] * 2
    assert graphs.num_bytes == 4 * 3 * MIB
    assert graphs.size_for(3, 3, has_prompts=False) == GraphSize(4, 4)
    assert graphs.size_for(3, 2, has_prompts=True) == GraphSize(16, 4, has_prompts=True)


class Stray:
    """A graph that nobody holds any more but itself: collecting it says when."""

    def __init__(self, log: list[str]) -> None:
        self._log, self._itself = log, self

    def __del__(self) -> None:
        self._log.append("collected")


def test_no_garbage_is_collected_while_a_graph_is_captured() -> None:
    """A graph that is destroyed meanwhile would void the capture."""
    log: list[str] = []

    def step(batch: object) -> None:
        log.append("step")
        Stray(log)
        lists: list[list[object]] = [[] for _ in range(2000)]  # more than any threshold of the collector
        lists.clear()

    Stray(log)
    StepGraphs(FakeGpu(), padded(small_workspace(2))[0], captured_sizes(2, 2, with_prompts=False)).capture(step)
    assert log == ["collected"] + 4 * ["step"]
    assert gc.isenabled()
    gc.collect()


# ---- the engine on them


def test_replays_answer_as_eager_steps_and_as_transformers(gpt2: tuple[str, torch.nn.Module], gpu: FakeGpu) -> None:
    path, model = gpt2
    prompts = random_prompts(1, 9, 30, 17, 5, 3)  # batches of five, then fewer: every rung of the ladder, padded too
    llm = start(path)
    assert answer(llm, prompts, 10) == greedy(model, prompts, 10)
    stats = llm.get_stats()
    assert stats["num_graph_replays"] == stats["num_steps"] >= 10, "steps with prompts are replayed too"
    assert stats["num_steps_ahead"] >= 10
    llm.engine.reconfigure(enforce_eager=True, async_scheduling=False)
    assert answer(llm, prompts, 10) == greedy(model, prompts, 10)
    stats = llm.get_stats()
    assert stats["num_graph_replays"] == stats["num_steps_ahead"] == 0
    assert gpu.num_live_graphs == 0


def test_the_host_waits_for_a_step_when_the_next_one_runs(gpt2: tuple[str, torch.nn.Module], gpu: FakeGpu) -> None:
    llm = start(gpt2[0])
    gpu.mark().wait()  # the steps of the start are done
    gpu.events.clear()
    answer(llm, random_prompts(4, 4), 8)
    replays = "".join(event[0] for event in gpu.events)
    assert "swswsw" in replays
    assert replays.count("w") == 8
    assert replays.startswith("ssw"), "the first decode step starts before the prefill's tokens are read"


def test_a_replayed_step_launches_nothing_beside_its_graph(
    gpt2: tuple[str, torch.nn.Module], gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tokens are chosen in the graph: choosing them again would read all logits twice."""
    llm = start(gpt2[0])
    launched: list[str] = []
    kernel_of = gpu.runtime.kernel
    monkeypatch.setattr(gpu.runtime, "kernel", lambda variant: launched.append(variant.kernel) or kernel_of(variant))
    answer(llm, random_prompts(4, 4), 8)
    assert set(launched) == {"copy_inputs"}
    llm.engine.reconfigure(cudagraph_mode="full_decode_only")
    launched.clear()
    answer(llm, random_prompts(4, 4), 8)
    assert launched.count("sample_rows") == 1, "the step of the prompts is the only one without a graph"


def test_kernels_may_begin_early_where_that_is_asked_for(gpt2: tuple[str, torch.nn.Module], gpu: FakeGpu) -> None:
    llm = start(gpt2[0], max_num_seqs=1, enable_pdl=True)
    assert gpu.runtime.overlaps_launches
    llm.engine.reconfigure(enable_pdl=False)
    assert not gpu.runtime.overlaps_launches


def test_what_graphs_take_is_kept_back_before_the_pool_is_carved(
    gpt2: tuple[str, torch.nn.Module], gpu: FakeGpu
) -> None:
    with gpu.memory():
        llm = start(gpt2[0], gpu_memory_utilization=1.0)
        memory = llm.engine.memory
        assert memory.graph_bytes == 6 * gpu.graph_bytes  # four batch sizes, two numbers of tokens
        parts = memory.weight_bytes + memory.activation_bytes + memory.overhead_bytes + memory.graph_bytes
        assert memory.budget_bytes - parts == memory.kv_pool_bytes
        answer(llm, random_prompts(9, 30), 4)
        assert gpu.most_used_bytes <= gpu.total_bytes
        captures = gpu.num_captures
        llm.engine.reconfigure(gpu_memory_utilization=0.5)
        assert gpu.num_captures == captures + 6, "known sizes are not measured again"
        llm.engine.reconfigure(max_num_seqs=2)
        assert llm.engine.memory.graph_bytes == 4 * gpu.graph_bytes


@pytest.mark.slow
def test_a_capture_that_finds_no_memory_is_classified_and_survived(
    gpt2: tuple[str, torch.nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = take_gpu(monkeypatch, FakeGpu())
    llm = start(gpt2[0])
    gpu.refuses_graph = gpu.num_captures + 2
    with pytest.raises(OutOfDeviceMemory, match="capture steps as graphs: CUDA error: out of memory") as info:
        llm.engine.reconfigure(block_size=8)
    assert (info.value.phase, info.value.status) == ("graph_capture", "oom_kv_init")
    assert "enforce_eager" in (info.value.hint or "")
    gpu.refuses_graph = None
    llm.engine.reconfigure(block_size=8)
    prompts = random_prompts(9, 5)
    assert answer(llm, prompts, 5) == greedy(gpt2[1], prompts, 5)


@pytest.mark.parametrize(
    ("total_mib", "settings", "phase"),
    [(9, {}, "weights"), (40, {"max_num_batched_tokens": 64 * 1024}, "kv_init")],
)
def test_memory_that_ends_while_starting_is_named_by_phase(
    gpt2: tuple[str, torch.nn.Module], monkeypatch: pytest.MonkeyPatch, total_mib: int, settings: dict, phase: str
) -> None:
    gpu = take_gpu(monkeypatch, FakeGpu(total_bytes=total_mib * MIB))
    with gpu.memory(), pytest.raises(OutOfDeviceMemory) as info:
        start(gpt2[0], **settings)
    assert info.value.phase == phase


def test_memory_that_ends_while_running_is_survived(gpt2: tuple[str, torch.nn.Module], gpu: FakeGpu) -> None:
    llm = start(gpt2[0])
    replay = gpu.capture

    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")

    runner = llm.engine.serving.runner
    graphs, runner.graphs = runner.graphs, None
    runner.workspace.scratch = fail  # type: ignore[method-assign]
    with pytest.raises(OutOfDeviceMemory) as info:
        answer(llm, random_prompts(9), 10)
    assert info.value.phase == "runtime"
    assert gpu.capture == replay and graphs is not None
    llm.engine.reconfigure()
    prompts = random_prompts(9, 5)
    assert answer(llm, prompts, 5) == greedy(gpt2[1], prompts, 5)
