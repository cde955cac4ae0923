"""What kvplan's own engine reserves on a GPU for CUDA graphs of steps. No run has measured it yet.

A captured step allocates nothing that grows with the batch: every operation writes into the workspace. What is left is
the driver's memory for each launch of each graph, and the workspace that cuBLAS takes for the stream of the capture.

The launches are counted from the engine's code (tests/engine/cuda checks one against the other). The driver's share is
from elsewhere: vLLM's first engine captured whole decode steps too, 35 sizes of some 10 launches a layer, and logged
0.21 GiB for 28 layers (0.6.6, Qwen2.5 1.5B, L40S: github.com/lennonYe/6998_project) and 0.38 GiB for 48 layers (0.7.3,
Qwen2.5 14B, A100: github.com/baodangtrandev/RAG-): 22 and 23 KiB for each launch. NVIDIA's own cccl (pull request 3768)
counts "around 10 KB per kernel node". Drivers before 550 (CUDA 12.4) took 64 KiB (PyTorch's notes on CUDAGraph
trees; issue 5517 of vllm-project/vllm: 3.8 GiB fell to 1.1 with the driver).
"""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.catalog.spec import ModelSpec, SoftmaxAttention
from kvplan.estimate.adapters import num_engine_products
from kvplan.units import KIB, MIB, format_bytes

BYTES_PER_LAUNCH = 23 * KIB
LAUNCHES_PER_LAYER = 9
"""qkv product, rotation with KV write, attention, output product, addition with norm, up product, activation, down
product, addition with norm."""
HEAD_NORM_LAUNCHES = 2
"""In each layer of a model that norms its queries and keys."""
PROMPT_LAUNCHES = 1
"""More in each layer of a step with prompts: attention of sequences with several new tokens."""
OTHER_LAUNCHES = 6
"""Embedding, first norm, the attention's plan, the rows to choose for, head, choice."""
LEARNED_POSITION_LAUNCHES = 2
"""Looked up and added."""
CORRECTION_LAUNCHES = 2
"""Of each product that adapters may correct: x A^T, and B times that."""
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
    """Of one decode step."""
    num_prompt_sizes: int
    """Of steps with prompts: 0 where these are not captured."""
    num_prompt_launches: int
    workspace_bytes: int

    @property
    def num_bytes(self) -> int:
        launches = self.num_sizes * self.num_launches + self.num_prompt_sizes * self.num_prompt_launches
        return launches * BYTES_PER_LAUNCH + self.workspace_bytes

    def sentence(self) -> str:
        """The figure, how it is made, and that it has not been measured."""
        counts = f"{self.num_sizes} batch sizes x {self.num_launches} launches"
        if self.num_prompt_sizes:
            with_prompts = f"{self.num_prompt_sizes} sizes of steps with prompts x {self.num_prompt_launches}"
            counts = f"({counts} + {with_prompts})"
        return (
            f"CUDA graphs of steps take about {format_bytes(self.num_bytes, digits=0)} of the overhead. Not measured: "
            f"{counts} x {BYTES_PER_LAUNCH // KIB} KiB (from vLLM's logs) + "
            f"{format_bytes(self.workspace_bytes, digits=0)} for cuBLAS."
        )


def graph_memory(
    spec: ModelSpec,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    compute_capability: tuple[int, int] | None = None,
    *,
    has_adapters: bool = False,
) -> GraphMemory:
    """For steps of up to so many sequences and tokens. compute_capability None: not known, the larger workspace.

    Weights in few bits are counted as dense ones: a product of more than 16 rows takes a few launches more.
    """
    has_large_workspace = compute_capability is None or compute_capability >= _HOPPER
    return GraphMemory(
        num_sizes=num_graph_sizes(max_num_seqs),
        num_launches=step_launches(spec, has_adapters=has_adapters),
        num_prompt_sizes=num_prompt_sizes(max_num_batched_tokens) if captures_prompts(spec) else 0,
        num_prompt_launches=step_launches(spec, has_adapters=has_adapters, has_prompts=True),
        workspace_bytes=_HOPPER_BLAS_WORKSPACE_BYTES if has_large_workspace else _BLAS_WORKSPACE_BYTES,
    )


def num_graph_sizes(max_num_seqs: int) -> int:
    """How many batch sizes are captured: 1, 2, 4, 8, every 16 and the largest, which is at most 512."""
    largest = min(max_num_seqs, _LARGEST_SIZE)
    sizes = {largest, *_SMALL_SIZES, *range(_SIZE_STEP, largest, _SIZE_STEP)}
    return sum(1 for size in sizes if size <= largest)


def captures_prompts(spec: ModelSpec) -> bool:
    """Whether steps with prompts are captured too: of models without experts and states, with ordinary attention."""
    return not spec.is_mixture and all(
        isinstance(layer.mixer, SoftmaxAttention) and layer.parallel_state is None and layer.cross_attention is None
        for layer in spec.layers
    )


def num_prompt_sizes(max_num_batched_tokens: int) -> int:
    """How many numbers of tokens: 16, every 32 up to 256, every 64 up to 512, and a step's most if that is less."""
    largest = min(max_num_batched_tokens, _LARGEST_SIZE)
    return len({size for size in _PROMPT_SIZES if size <= largest} | {largest})


def step_launches(spec: ModelSpec, *, has_adapters: bool = False, has_prompts: bool = False) -> int:
    """Launches of one decode step, or of a step with prompts."""
    layers = [layer.mixer for layer in spec.layers]
    normed = sum(1 for mixer in layers if isinstance(mixer, SoftmaxAttention) and mixer.qk_norm != "none")
    others = OTHER_LAUNCHES + (LEARNED_POSITION_LAUNCHES if spec.rope is None else 0)
    corrections = CORRECTION_LAUNCHES * num_engine_products(spec) if has_adapters else 0
    per_layer = LAUNCHES_PER_LAYER + (PROMPT_LAUNCHES if has_prompts else 0)
    return per_layer * len(layers) + HEAD_NORM_LAUNCHES * normed + others + corrections
