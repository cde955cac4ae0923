"""What kvplan's own engine reserves on a GPU for CUDA graphs of steps. No run has measured it yet.

A captured step allocates nothing that grows with the batch: every operation writes into the workspace. What is left is
the driver's memory for each launch of each graph, and the workspace that cuBLAS takes for the stream of the capture.

Launches are counted part by part from the engine's code, for the parts that families share; tests/engine/cuda compares
them with what is captured. What few families add (scales and norms of the residual stream, softcaps, learned scales) is
not counted.

The driver's share is from elsewhere: vLLM's first engine captured whole decode steps too, 35 sizes of some 10 launches
a layer, and logged 0.21 GiB for 28 layers (0.6.6, Qwen2.5 1.5B, L40S: github.com/lennonYe/6998_project) and 0.38 GiB
for 48 layers (0.7.3, Qwen2.5 14B, A100: github.com/baodangtrandev/RAG-): 22 and 23 KiB for each launch. NVIDIA's own
cccl (pull request 3768) counts "around 10 KB per kernel node". Drivers before 550 (CUDA 12.4) took 64 KiB (PyTorch's
notes on CUDAGraph trees; issue 5517 of vllm-project/vllm: 3.8 GiB fell to 1.1 with the driver).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from kvplan.catalog.parts import LATENT_PROJECTIONS
from kvplan.catalog.spec import (
    CompressedAttention,
    DenseFeedForward,
    FeedForward,
    LatentAttention,
    LayerSpec,
    Mixer,
    ModelSpec,
    MoeFeedForward,
    SoftmaxAttention,
    StateMixer,
)
from kvplan.errors import unhandled_kind
from kvplan.estimate.adapters import num_engine_products
from kvplan.estimate.dtypes import element_bytes
from kvplan.estimate.kvplan.held_weights import holds_experts_in_few_bits
from kvplan.units import KIB, MIB, format_bytes

BYTES_PER_LAUNCH = 23 * KIB
_SMALL_SIZES = (1, 2, 4, 8)
_SIZE_STEP = 16
_LARGEST_SIZE = 512
_PROMPT_SIZES = (16, *range(32, 256, 32), *range(256, _LARGEST_SIZE + 1, 64))
_BLAS_WORKSPACE_BYTES = 8320 * KIB
_HOPPER_BLAS_WORKSPACE_BYTES = 32 * MIB
_HOPPER = (9, 0)
_ENDS = 5
"""Embedding, first norm, the rows to choose for, head, choice."""
_LEARNED_POSITIONS = 2
"""Looked up and added."""
_ADDED_WITH_NORM = 1
"""Launches from a block's output to the next block's input; of two mixers side by side one is added by itself."""
_CORRECTION = 2
"""Launches of each product that adapters may correct: x A^T, and B times that."""
_DIVIDED_EMBEDDING = 7
"""Beside the look-up: which tokens are another rank's (4), their rows left out before and behind it (2), the sum."""
_GATHER = 1
"""The gathering of the logits; each rank's part is copied after it."""
_ATTENTION = 4
"""qkv product, rotation with KV write, attention, output product."""
_HEAD_NORMS = 2
_GATE = 3
"""Product, activation, multiplication."""
_PROMPTS = 1
"""More in each attention of a step with prompts: sequences with several new tokens."""
_LATENT_ATTENTION = 13
"""Query, latent and its norm, two rotations, write; a product of each head and a copy into the latents, a copy of what
turns, attention, a product of each head and a copy out of them, output product."""
_QUERY_LATENT = 2
"""Another product, and a norm."""
_STATES = {
    "gated_delta_net": 6,
    "kimi_delta": 10,
    "mamba1": 7,
    "mamba2": 5,
    "short_conv": 5,
    "ngram_conv": 8,
    "stream_conv": 8,
    "linear_attention": 6,
}
"""Products into and out of the layer, convolution, recurrence and gate, as far as a kind has them."""
_STEP_NORMS = 3
"""Of what Mamba's time steps are made of, of B and of C."""
_MLP = 3
"""Up product, activation, down product."""
_ROUTING = 2
"""The router's product, and the choice."""
_SORTING = 1
_UNSORTED_ROWS = 4
_EXPERTS_UP = 1
_EXPERTS_DOWN = 2
"""Their second product, and the sum."""
_SUM_BYTES = 64 * MIB
"""What the experts give is kept in float32 for as many outputs at a time as this holds, in multiples of 128."""
_OUTPUT_MULTIPLE = 128
_MOST_EXPERTS, _MOST_CHOICES = 1024, 32
"""That the routing kernel takes."""
_VECTOR_BYTES = 16
"""Of which an expert's inner values are made."""


def step_launches(
    spec: ModelSpec, num_rows: int, *, has_adapters: bool = False, has_prompts: bool = False, num_ranks: int = 1
) -> int:
    """Count the launches of one decode step of ``num_rows`` sequences, or of a step with prompts of so many tokens.

    num_ranks: that share every layer; then ``spec`` is the first one's part, and collectives count as launches.
    """
    ends = _ENDS + (_LEARNED_POSITIONS if any(tensor.role == "position" for tensor in spec.tensors) else 0)
    corrections = _CORRECTION * num_engine_products(spec) if has_adapters else 0
    layers = sum(
        count * _layer_launches(layer, spec, num_rows, has_prompts=has_prompts)
        for layer, count in spec.distinct_layers()
    )
    return ends + _num_plans(spec) + corrections + layers + (_of_ranks(spec, num_ranks) if num_ranks > 1 else 0)


def _of_ranks(spec: ModelSpec, num_ranks: int) -> int:
    """Sums behind each mixer and feed-forward, a divided embedding, and the parts of the logits."""
    sums = sum(len(layer.mixers) + (layer.feed_forward is not None) for layer in spec.layers)
    return sums + _DIVIDED_EMBEDDING + _GATHER + num_ranks


def launches_each_expert(spec: ModelSpec, dtype: str, quantization: str, group_size: int | None = None) -> bool:
    """Whether the engine computes one expert after the other on a GPU, and captures no step then.

    Those in few bits, behind a latent of their own, or of sizes that its kernels do not take. quantization, group_size:
    see ``held_weights.held_weight_bytes``.
    """
    parts = (layer.feed_forward for layer, _ in spec.distinct_layers())
    mixtures = [each for each in parts if isinstance(each, MoeFeedForward)]
    if any(_is_left_to_torch(each, element_bytes(dtype)) for each in mixtures):
        return True
    return bool(mixtures) and holds_experts_in_few_bits(spec, quantization, group_size)


def _is_left_to_torch(mixture: MoeFeedForward, itemsize: int) -> bool:
    has_latent = any(tensor.name.endswith(LATENT_PROJECTIONS) for tensor in mixture.tensors)
    sizes = (mixture.expert_intermediate_size, mixture.shared_intermediate_size)
    is_large = mixture.num_experts > _MOST_EXPERTS or mixture.experts_per_token > _MOST_CHOICES
    return has_latent or is_large or any(size * itemsize % _VECTOR_BYTES for size in sizes)


def _num_plans(spec: ModelSpec) -> int:
    """Attention is planned once for each shape and window."""
    mixers = [mixer for layer, _ in spec.distinct_layers() for mixer in layer.mixers]
    softmax = {
        (each.num_heads, each.num_kv_heads, each.head_size_k, each.head_size_v, each.window_tokens)
        for each in mixers
        if isinstance(each, SoftmaxAttention)
    }
    return len(softmax) + any(isinstance(each, LatentAttention) for each in mixers)


def _layer_launches(layer: LayerSpec, spec: ModelSpec, num_rows: int, *, has_prompts: bool) -> int:
    mixers = sum(_mixer_launches(mixer, spec, has_prompts=has_prompts) + _ADDED_WITH_NORM for mixer in layer.mixers)
    part = layer.feed_forward
    return mixers + (0 if part is None else _inner_launches(part, spec, num_rows) + _ADDED_WITH_NORM)


def _mixer_launches(mixer: Mixer, spec: ModelSpec, *, has_prompts: bool) -> int:
    of_prompts = _PROMPTS if has_prompts else 0
    match mixer:
        case SoftmaxAttention():
            norms = _HEAD_NORMS if mixer.qk_norm != "none" else 0
            return _ATTENTION + norms + (_GATE if mixer.output_gate != "none" else 0) + of_prompts
        case CompressedAttention():  # which the engine does not compute yet
            return _LATENT_ATTENTION + _QUERY_LATENT + of_prompts
        case LatentAttention():
            query = _QUERY_LATENT if mixer.q_lora_rank is not None else 0
            return _LATENT_ATTENTION + query + of_prompts
        case StateMixer():
            return _STATES[mixer.kind] + (_STEP_NORMS if _has_step_norms(mixer, spec) else 0)
    raise unhandled_kind(mixer, "step_launches")


def _has_step_norms(mixer: StateMixer, spec: ModelSpec) -> bool:
    """Falcon Mamba's have no weights."""
    named = any("dt_layernorm" in tensor.name for tensor in mixer.tensors)
    return named or (mixer.kind == "mamba1" and spec.model_type == "falcon_mamba")


def _inner_launches(part: FeedForward, spec: ModelSpec, num_rows: int) -> int:
    match part:
        case DenseFeedForward():
            return _MLP
        case MoeFeedForward():
            return _mixture_launches(part, spec.hidden_size, num_rows)
    raise unhandled_kind(part, "step_launches")


def _mixture_launches(mixture: MoeFeedForward, hidden_size: int, num_rows: int) -> int:
    """The shared expert has two products beside those of the others."""
    num_shared = 1 if mixture.shared_intermediate_size else 0
    num_sums = num_rows * (mixture.experts_per_token + num_shared)
    fitting = _SUM_BYTES // (4 * num_sums) // _OUTPUT_MULTIPLE * _OUTPUT_MULTIPLE
    num_slices = -(-hidden_size // max(_OUTPUT_MULTIPLE, fitting))
    sorting = _SORTING if num_rows > _UNSORTED_ROWS else 0
    return _ROUTING + sorting + _EXPERTS_UP + num_shared + num_slices * (_EXPERTS_DOWN + num_shared)


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
