"""What kvplan's own engine reserves on a GPU for CUDA graphs of steps. No run has measured it yet.

A captured step allocates nothing that grows with the batch: every operation writes into the workspace. What is left is
the driver's memory for each launch of each graph, and the workspace that cuBLAS takes for the stream of the capture.

The launches are counted from the engine's code (``launches``). The driver's share is from elsewhere: vLLM's first
engine captured whole decode steps too, 35 sizes of some 10 launches a layer, and logged 0.21 GiB for 28 layers (0.6.6,
Qwen2.5 1.5B, L40S: github.com/lennonYe/6998_project) and 0.38 GiB for 48 layers (0.7.3, Qwen2.5 14B, A100:
github.com/baodangtrandev/RAG-): 22 and 23 KiB for each launch. NVIDIA's own cccl (pull request 3768) counts "around 10
KB per kernel node". Drivers before 550 (CUDA 12.4) took 64 KiB (PyTorch's notes on CUDAGraph trees; issue 5517 of
vllm-project/vllm: 3.8 GiB fell to 1.1 with the driver).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from kvplan.catalog.spec import ModelSpec
from kvplan.estimate.kvplan.launches import step_launches
from kvplan.units import KIB, MIB, format_bytes

BYTES_PER_LAUNCH = 23 * KIB
_SMALL_SIZES = (1, 2, 4, 8)
_SIZE_STEP = 16
_LARGEST_SIZE = 512
_PROMPT_SIZES = (16, *range(32, 256, 32), *range(256, _LARGEST_SIZE + 1, 64))
_BLAS_WORKSPACE_BYTES = 8320 * KIB
_HOPPER_BLAS_WORKSPACE_BYTES = 32 * MIB
_HOPPER = (9, 0)


@dataclass(frozen=True, slots=True)
class GraphMemory:
    """The terms of the prediction."""

    num_sizes: int
    num_launches: int
    """Of decode steps of all these sizes together."""
    num_prompt_sizes: int
    """Of steps with prompts."""
    num_prompt_launches: int
    workspace_bytes: int

    @property
    def num_bytes(self) -> int:
        return (self.num_launches + self.num_prompt_launches) * BYTES_PER_LAUNCH + self.workspace_bytes

    def sentence(self) -> str:
        """The figure, how it is made, and that it has not been measured."""
        return (
            f"CUDA graphs of steps take about {format_bytes(self.num_bytes, digits=0)} of the overhead. Not measured: "
            f"({self.num_launches:,} launches of {self.num_sizes} batch sizes + {self.num_prompt_launches:,} of "
            f"{self.num_prompt_sizes} sizes of steps with prompts) x {BYTES_PER_LAUNCH // KIB} KiB (from vLLM's logs) "
            f"+ {format_bytes(self.workspace_bytes, digits=0)} for cuBLAS."
        )


def graph_memory(
    spec: ModelSpec,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    compute_capability: tuple[int, int] | None = None,
    *,
    has_adapters: bool = False,
    num_ranks: int = 1,
) -> GraphMemory:
    """Return the memory of graphs for steps of up to so many sequences and tokens. compute_capability None: not known,
    the larger workspace. num_ranks: see ``step_launches``.

    Weights in few bits are counted as dense ones: a product of more than 16 rows takes a few launches more.
    """
    sizes = graph_sizes(max_num_seqs)
    with_prompts = prompt_sizes(max_num_batched_tokens)
    launches = partial(step_launches, spec, has_adapters=has_adapters, num_ranks=num_ranks)
    has_large_workspace = compute_capability is None or compute_capability >= _HOPPER
    return GraphMemory(
        num_sizes=len(sizes),
        num_launches=sum(map(launches, sizes)),
        num_prompt_sizes=len(with_prompts),
        num_prompt_launches=sum(launches(size, has_prompts=True) for size in with_prompts),
        workspace_bytes=_HOPPER_BLAS_WORKSPACE_BYTES if has_large_workspace else _BLAS_WORKSPACE_BYTES,
    )


def graph_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """The batch sizes that are captured: 1, 2, 4, 8, every 16 and the largest, which is at most 512."""
    largest = min(max_num_seqs, _LARGEST_SIZE)
    sizes = {largest, *_SMALL_SIZES, *range(_SIZE_STEP, largest, _SIZE_STEP)}
    return tuple(sorted(size for size in sizes if size <= largest))


def prompt_sizes(max_num_batched_tokens: int) -> tuple[int, ...]:
    """The numbers of tokens: 16, every 32 up to 256, every 64 up to 512, and a step's most if that is less."""
    largest = min(max_num_batched_tokens, _LARGEST_SIZE)
    return tuple(sorted({size for size in _PROMPT_SIZES if size <= largest} | {largest}))
