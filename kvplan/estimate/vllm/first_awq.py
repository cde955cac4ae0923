"""AWQ in vLLM before 0.3.0: each product leaves eight partial sums of every token, until they are added up.

The kernel wrote 8 x tokens x outputs in the model's dtype and summed over the first axis (csrc/quantization/awq,
``split_k_iters`` = 8); pull request 2566 of vllm-project/vllm ended it for large batches. Beyond 2 GiB PyTorch sums
through a buffer in float32 as well (ATen/native/cuda/Reduce.cuh, AccumulationBuffer). These releases counted what
PyTorch had reserved, fragments included, so the layers are simulated on a model of its allocator.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.catalog.releases.vllm import VllmRelease
from kvplan.catalog.spec import DenseFeedForward, LayerSpec, ModelSpec, MoeFeedForward, SoftmaxAttention
from kvplan.estimate.dtypes import element_bytes
from kvplan.estimate.vllm.torch_allocator import CachingAllocator, Piece
from kvplan.settings import FilledSettings

_PARTIAL_SUMS = 8
_INDEXABLE_BYTES = 2**31 - 1
_SUM_BYTES = 4
_LAYERS_SIMULATED = 3
"""Enough for the pool to stop growing: the same sizes come and go in every layer."""


def first_awq_bytes(
    spec: ModelSpec, layers: tuple[LayerSpec, ...], settings: FilledSettings, release: VllmRelease
) -> int:
    """What the decoder's layers take from PyTorch's allocator; 0 for other formats and later releases."""
    stored = spec.quantization.method if spec.quantization is not None else settings.quantization
    if not release.awq_keeps_partial_sums or stored != "awq":
        return 0
    layer = next((layer for layer in layers if isinstance(layer.mixer, SoftmaxAttention)), None)
    if layer is None:
        return 0
    step = _Step(CachingAllocator(), settings, spec.hidden_size)
    hidden = step.vector()
    residual = hidden
    for index in range(_LAYERS_SIMULATED):
        normed = step.vector()
        if index:
            step.memory.release(hidden)
        attended = step.attention(layer, normed)
        hidden = step.feed_forward(layer, attended)
    step.memory.release(residual)
    return step.memory.reserved_bytes if release.counts_non_torch else step.memory.peak_bytes


@dataclass(frozen=True, slots=True)
class _Step:
    """Allocations of one step, in the order in which the release's Python code made and dropped them."""

    memory: CachingAllocator
    settings: FilledSettings
    hidden_size: int

    def vector(self, width: int | None = None) -> Piece:
        tokens, size = self.settings.max_num_batched_tokens, element_bytes(self.settings.dtype)
        return self.memory.allocate(tokens * (self.hidden_size if width is None else width) * size)

    def product(self, width: int) -> Piece:
        """A quantized matrix product with ``width`` outputs."""
        tokens, size = self.settings.max_num_batched_tokens, element_bytes(self.settings.dtype)
        partial_bytes = _PARTIAL_SUMS * tokens * width * size
        partial = self.memory.allocate(partial_bytes)
        out = self.vector(width)
        if partial_bytes > _INDEXABLE_BYTES:
            self.memory.release(self.memory.allocate(tokens * width * _SUM_BYTES))
        self.memory.release(partial)
        return out

    def attention(self, layer: LayerSpec, normed: Piece) -> Piece:
        mixer = layer.mixer
        assert isinstance(mixer, SoftmaxAttention)
        tp = self.settings.tensor_parallel_size
        query = mixer.num_heads // tp * mixer.head_size_k
        key_value = max(mixer.num_kv_heads // tp, 1) * (mixer.head_size_k + mixer.head_size_v)
        projected = self.product(query + key_value)
        self.memory.release(normed)
        attended = self.vector(mixer.num_heads // tp * mixer.head_size_v)
        out = self.product(self.hidden_size)
        self.memory.release(attended, projected)
        return out

    def feed_forward(self, layer: LayerSpec, normed: Piece) -> Piece:
        part = layer.feed_forward
        tp = self.settings.tensor_parallel_size
        if isinstance(part, MoeFeedForward):
            out = self._experts(part.num_experts // tp, part.expert_intermediate_size)
        else:
            inner = part.intermediate_size // tp if isinstance(part, DenseFeedForward) else self.hidden_size
            out = self._merged_feed_forward(inner)
        self.memory.release(normed)
        return out

    def _merged_feed_forward(self, inner: int) -> Piece:
        both = self.product(2 * inner)
        activated = self.vector(inner)
        out = self.product(self.hidden_size)
        self.memory.release(activated, both)
        return out

    def _experts(self, num_experts: int, inner: int) -> Piece:
        """Whole experts on each rank, one after the other; the loop holds the last one's output until the next ends."""
        total: Piece | None = None
        last: Piece | None = None
        for _ in range(num_experts):
            gate = self.product(inner)
            activated = self.vector(inner)
            self.memory.release(gate)
            up = self.product(inner)
            both = self.vector(inner)
            out = self.product(self.hidden_size)
            self.memory.release(both, activated, up)
            if last is not None:
                self.memory.release(last)
            total, last = (out, None) if total is None else (total, out)
        if last is not None:
            self.memory.release(last)
        return total if total is not None else self.vector()
