"""Bytes of the weights on one rank of vLLM: which part of each tensor it holds, and what an element costs there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import Literal

from kvplan.catalog.spec import (
    CompressedAttention,
    LatentAttention,
    LayerSpec,
    Mixer,
    ModelSpec,
    QuantizationSpec,
    SoftmaxAttention,
    StateMixer,
)
from kvplan.catalog.tensors import Tensor
from kvplan.estimate.dtypes import element_bytes
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.vllm.kernels import ExpertLayout, RepeatedScales
from kvplan.estimate.vllm.modalities import own_config
from kvplan.estimate.vllm.rope_tables import rope_table_bytes
from kvplan.estimate.vllm.stored import stored_rank_bytes, stored_scale
from kvplan.estimate.vllm.torch_allocator import CachingAllocator
from kvplan.estimate.weights import NAMED_FORMATS, format_of, quantized_bytes
from kvplan.settings import MADE_WHILE_LOADING, FilledSettings
from kvplan.units import MIB

_VOCAB_PADDING = 64
_NUMBER_BYTES = 4
_SCALE_ROWS = 256
"""What the rows of swizzled scales are padded to a multiple of."""
_PLAIN_EXPERTS = ExpertLayout()


AllocatorKind = Literal["splitting", "limited", "expandable"]


class StoredFormats:
    """How a model's tensors are stored, looked up once each: published lists can be long."""

    def __init__(self, quantization: QuantizationSpec | None) -> None:
        self.quantization = quantization
        self._found: dict[tuple[int | None, str], QuantizationSpec | None] = {}
        # By a model's address, with the model, which keeps the address its own.
        self._kinds: dict[int, tuple[ModelSpec, tuple[int, ...]]] = {}

    def of(self, tensor: Tensor, layer: int | None) -> QuantizationSpec | None:
        """The format of ``tensor`` of layer ``layer`` (None: outside the layers); None: unquantized."""
        if self.quantization is None:
            return None
        key = (layer, tensor.name)
        if key not in self._found:
            self._found[key] = format_of(self.quantization, tensor, layer)
        return self._found[key]

    def kinds(self, spec: ModelSpec) -> tuple[int, ...]:
        """A number for each layer, equal where the tensors and their formats are: most models have one or two kinds."""
        if id(spec) not in self._kinds:
            numbers: dict[object, int] = {}
            keys = [
                (layer.all_tensors, tuple(id(self.of(tensor, index)) for tensor in layer.all_tensors))
                for index, layer in enumerate(spec.layers)
            ]
            self._kinds[id(spec)] = (spec, tuple(numbers.setdefault(key, len(numbers)) for key in keys))
        return self._kinds[id(spec)][1]


@dataclass(frozen=True, slots=True)
class WeightShare:
    """What decides a rank's part of the weights."""

    dtype: str
    formats: StoredFormats
    layout: ParallelLayout
    head_rows: int = 1
    """Rows of the KV projections that belong to one KV head, for ranks that hold a replica."""
    layer: int | None = None
    in_float32: bool = True
    """Whether what vLLM keeps in float32 is, as it is in no other engine."""
    absorbs_latents: bool = False
    """Whether attention reads the latents' upward matrix in the model's dtype, beside the quantized one.

    W_UK_T and W_UV are views of one dequantized copy, and of the matrix itself where it is not quantized
    (process_weights_after_loading of latent attention: vllm/v1/attention/backends/mla/common.py, later
    vllm/model_executor/layers/attention/mla_attention.py; read in 0.8.0 to 0.33.0).
    """
    expert_layout: ExpertLayout = _PLAIN_EXPERTS
    """How MXFP4 experts are laid out."""
    allocator: AllocatorKind = "splitting"
    """What becomes of what a large tensor leaves of its last step of memory.

    splitting: it is split off for others, as in other engines.
    limited: from vLLM 0.21 on the weights are loaded with ``max_split_size_mb`` of 20 (vllm/v1/worker/gpu_worker.py,
    Worker.load_model and _scoped_allocator_max_split; pull request 41268), on NVIDIA's GPUs alone. PyTorch splits no
    piece for a request of that size or more (c10/cuda/CUDACachingAllocator.cpp, should_split), so that such a tensor
    keeps whole steps of 2 MiB.
    expandable: with ``expandable_segments`` of PyTorch there are no steps: any rest is split off (should_split). P032
    and Z013 of tests/data/vllm_startups.csv have 9.01 GiB of weights on each of two GPUs, as the checkpoint has, and
    not 9.15.
    """
    repeats_block_scales: RepeatedScales = "none"
    """Whose blocks' scales are repeated for each of their rows, in the model's dtype (``repeats_block_scales``)."""


def stored_formats(spec: ModelSpec, requested: str) -> StoredFormats:
    """The published format, else one that vLLM makes while loading (``requested``), else plain weights."""
    if spec.quantization is not None:
        return StoredFormats(spec.quantization)
    return StoredFormats(NAMED_FORMATS[requested] if requested in MADE_WHILE_LOADING else None)


def rank_weight_bytes(
    spec: ModelSpec,
    layers: range,
    *,
    layout: ParallelLayout,
    dtype: str,
    formats: StoredFormats,
    max_model_len: int,
    with_towers: bool = True,
    in_float32: bool = True,
    absorbs_latents: bool = False,
    qwen3_positions: int = 4,
    expert_layout: ExpertLayout = _PLAIN_EXPERTS,
    allocator: AllocatorKind = "splitting",
    repeats_block_scales: RepeatedScales = "none",
) -> int:
    """Bytes of the layers ``layers`` on one rank, with embedding, head and towers where they lie, and rope tables.

    Tables inside layers (Qwen 4's n-grams) lie in the host's memory (vllm/config/engram.py, cpu_offload).

    The first stage has the embedding and the towers, the last one the head (and a second copy of a tied embedding when
    they are different ranks).
    """
    parts: list[Tensor] = []
    total = 0
    plain = WeightShare(
        dtype,
        formats,
        layout,
        in_float32=in_float32,
        absorbs_latents=absorbs_latents,
        expert_layout=expert_layout,
        allocator=allocator,
        repeats_block_scales=repeats_block_scales,
    )
    scale = stored_scale(spec, dtype)
    kinds, by_kind, copies = formats.kinds(spec), dict[int, int](), dict[int, int]()
    for index in layers:
        if kinds[index] not in by_kind:
            share = replace(plain, head_rows=_head_rows(spec.layers[index]), layer=index)
            on_gpu = (tensor for tensor in spec.layers[index].all_tensors if tensor.role != "lookup")
            by_kind[kinds[index]] = _allocated_bytes(on_gpu, share)
            copies[kinds[index]] = _absorbed_bytes(spec.layers[index].mixer, share)
        total += int(by_kind[kinds[index]] * scale.layers[index]) + copies[kinds[index]]
    is_first, is_last = layers.start == 0, layers.stop == spec.num_layers
    for tensor in spec.tensors:
        is_input = tensor.role in ("embedding", "position")
        if (is_input and (is_first or (is_last and spec.tie_word_embeddings))) or (not is_input and is_last):
            parts.append(tensor)
    total += int(_allocated_bytes(parts, plain) * scale.outside)
    if is_first and with_towers:
        total += tower_bytes(spec, layout.tensor_parallel_size, dtype)
    return total + rope_table_bytes(spec, dtype, max_model_len, qwen3_positions)


def loaded_beside(
    spec: ModelSpec, layers: range, plain: WeightShare, *, from_plain: bool, rope_bytes: int
) -> tuple[int, tuple[int, ...]]:
    """Replay how ``layers`` are loaded: bytes that they take beside their tensors, and pieces left free in PyTorch.

    The pieces are of segments that are partly in use and cannot be given back. vLLM makes all modules, layer by layer,
    with a limit to splitting (``WeightShare.allocator``).

    rope_bytes: the table of positions of a model with no other format and no tower, which the first layer's attention
    makes. Angles, cosines and sines in float32 are as large as the table in 16 bits; both side by side are twice that,
    and are the table of a model in float32 (rotary_embedding/base.py, _compute_cos_sin_cache). A later tensor of 20 MiB
    and more takes one of these whole if less than 20 MiB are left: 16 MiB more for Llama 3.1 8B in vLLM 0.25.1, 0.29
    and 0.33 run without a GPU.

    from_plain: the format is made while loading. Each module is made when the file has given all its tensors, in the
    model's dtype first. The piece that this leaves may be larger than the quantized module that takes it next, and is
    not split (vllm/model_executor/layers/quantization/online/fp8.py and model_loader/reload/layerwise.py; 0.27.1, 0.32
    and 0.33).
    """
    memory, expected, later = CachingAllocator(max_split_bytes=NEVER_SPLIT_FROM), 0, list[_Made]()
    kinds, by_kind = plain.formats.kinds(spec), dict[int, list[_Made]]()
    for index in layers:
        if kinds[index] not in by_kind:
            share = replace(plain, head_rows=_head_rows(spec.layers[index]), layer=index)
            on_gpu = (tensor for tensor in spec.layers[index].all_tensors if tensor.role != "lookup")
            by_kind[kinds[index]] = _made_tensors(on_gpu, share, from_plain=from_plain)
        made = by_kind[kinds[index]]
        later += sorted((each for each in made if each.plain), key=lambda each: each.last)
        table_after = _last_of_mixers(spec.layers[index]) if index == layers.start and rope_bytes > _SPLIT_ABOVE else ""
        for each in made:
            for size in each.sizes:
                if size > _SPLIT_ABOVE:
                    expected += _rounded(size, plain)
                    if not each.plain:
                        memory.allocate(size)
            if each.first == table_after:
                _make_rope_table(memory, rope_bytes, element_bytes(plain.dtype))
                expected += rope_bytes
    for each in later:
        whole = memory.allocate(each.plain)
        for size in each.sizes:
            if size > _SPLIT_ABOVE:
                memory.allocate(size)
        memory.release(whole)
    memory.release_segments()
    return memory.in_use_bytes - expected, memory.free_pieces


def _last_of_mixers(layer: LayerSpec) -> str:
    names = [tensor.name for mixer in layer.mixers for tensor in mixer.tensors]
    return (_merged_name(names[-1]) or names[-1]) if names else ""


def _make_rope_table(memory: CachingAllocator, num_bytes: int, element: int) -> None:
    angles = 2 * num_bytes // element
    parts = [memory.allocate(angles) for _ in range(3)]
    whole = memory.allocate(2 * angles)
    memory.release(*parts)
    if element < _NUMBER_BYTES:
        memory.allocate(num_bytes)
        memory.release(whole)


def buffer_bytes_per_token(layers: Iterable[LayerSpec], dtype: str) -> int:
    """What layers hold for each token of a step's budget: numbers of the tokens that an index chose, rows of a table.

    Where latents are sparse all layers share one list of numbers (topk_indices_buffer in
    vllm/model_executor/models/deepseek_v2.py, read in 0.11.0 to 0.19.0, later vllm/models/deepseek_v32, deepseek_v4,
    hy_v4 and glm5next).

    vLLM 0.33, vllm/models/qwen4_exp: nvidia/qsa.py (topk_indices_buffer, with one more column for how many there are)
    and common/ngram_embedding.py (_prefetch_buffer).
    """
    shared, per_token = 0, 0
    for mixer in (mixer for layer in layers for mixer in layer.mixers):
        if isinstance(mixer, SoftmaxAttention):
            if mixer.indexer is not None and mixer.indexer.key_format == "model":
                per_token += (mixer.indexer.most_chosen + 1) * _NUMBER_BYTES
        elif isinstance(mixer, StateMixer):
            if mixer.kind == "ngram_conv":
                values = next(tensor for tensor in mixer.tensors if tensor.name.endswith("value_proj"))
                per_token += values.shape[1] * element_bytes(dtype)
        else:
            shared = max(shared, _chosen(mixer))
    return shared * _NUMBER_BYTES + per_token


def stream_buffer_bytes(spec: ModelSpec, settings: FilledSettings) -> int:
    """DeepSeek V4's residual streams of a step's tokens, which the last stage keeps for a drafter, with or without one.

    ``_mtp_hidden_buffer`` in vllm/models/deepseek_v4/nvidia/model.py (read in 0.22.1 to 0.33.0).
    """
    if not spec.is_compressed:
        return 0
    return settings.max_num_batched_tokens * spec.residual_streams * spec.hidden_size * element_bytes(settings.dtype)


def per_layer_input_bytes(spec: ModelSpec, settings: FilledSettings) -> int:
    """What models that see keep of a step's per-layer inputs, made with the weights (Gemma 3n, Gemma 4, Qwen3-VL).

    ``per_layer_embeddings`` in vllm/model_executor/models/gemma3n_mm.py and gemma4_mm.py (read in 0.32 and 0.33),
    ``deepstack_input_embeds`` in qwen3_vl.py and qwen3_omni_moe_thinker.py (read in 0.11.2 to 0.33.0).
    """
    config = own_config(spec.raw_config)
    if not isinstance(config.get("text_config"), Mapping):
        return 0
    width, vision = layer_input_width(spec), config.get("vision_config")
    if isinstance(vision, Mapping) and not settings.language_model_only:
        width += len(vision.get("deepstack_visual_indexes") or ()) * spec.hidden_size
    return settings.max_num_batched_tokens * width * element_bytes(settings.dtype)


def layer_input_width(spec: ModelSpec) -> int:
    """Return the elements of a token's inputs for all layers (Gemma 3n, Gemma 4 E); 0 for other models."""
    return next((tensor.shape[1] for tensor in spec.tensors if tensor.name == "embed_tokens_per_layer"), 0)


def _chosen(mixer: Mixer) -> int:
    """Numbers of tokens in the list that sparse latents share."""
    if isinstance(mixer, LatentAttention):
        return mixer.chosen_tokens or 0
    return mixer.indexer.topk if isinstance(mixer, CompressedAttention) and mixer.indexer is not None else 0


def _absorbed_bytes(mixer: Mixer | None, share: WeightShare) -> int:
    """The copy of the latents' upward matrix that attention reads, where there is one."""
    if not isinstance(mixer, LatentAttention) or not share.absorbs_latents:
        return 0
    upward = (tensor for tensor in mixer.tensors if tensor.name.endswith(".kv_b_proj"))
    copied = [tensor for tensor in upward if share.formats.of(tensor, share.layer) is not None]
    return sum(prod(rank_shape(tensor, share.layout)) for tensor in copied) * element_bytes(share.dtype)


def _head_rows(layer: LayerSpec) -> int:
    return layer.mixer.head_size_k if isinstance(layer.mixer, SoftmaxAttention) else 1


def tensor_bytes(tensor: Tensor, share: WeightShare) -> int:
    """Bytes of one tensor on one rank, scales and zero points included."""
    stored = share.formats.of(tensor, share.layer)
    if stored is not None:
        repeated = share.repeats_block_scales
        if stored.block_shape is not None and (repeated == "all" or (repeated == "linear" and tensor.role != "expert")):
            columns = stored.block_shape[1]
            stored = replace(stored, granularity="group", group_size=columns, scale_dtype=share.dtype)
        shape = _padded_shape(tensor, stored, share)
        return quantized_bytes(shape, stored) + _swizzled_bytes(tensor, shape, stored, share)
    in_float32 = tensor.in_float32 or (share.expert_layout.is_swizzled and _is_expert_bias(tensor))
    size = _NUMBER_BYTES if in_float32 and share.in_float32 else element_bytes(share.dtype)
    return prod(rank_shape(tensor, share.layout, share.head_rows)) * size


def _padded_shape(tensor: Tensor, stored: QuantizationSpec, share: WeightShare) -> tuple[int, ...]:
    """A quantized tensor on one rank."""
    shape = rank_shape(tensor, share.layout, share.head_rows)
    if stored.method == "mxfp4" and tensor.role == "expert":
        return padded_experts(shape, tensor.split, share.expert_layout)
    return shape


def padded_experts(shape: tuple[int, ...], split: str, layout: ExpertLayout) -> tuple[int, ...]:
    """Stacked MXFP4 experts as vLLM lays them out: hidden and each rank's inner width padded to what its kernel takes.

    The inner width is the output of gate and up, and the input of down.
    """
    if len(shape) < 3:
        return shape
    rows, columns = shape[-2:]
    row_step, column_step = layout.inner_step, layout.hidden_step
    if split == "row":
        row_step, column_step = column_step, row_step
    return (*shape[:-2], _round_up(rows, row_step), _round_up(columns, column_step))


def _swizzled_bytes(tensor: Tensor, shape: tuple[int, ...], stored: QuantizationSpec, share: WeightShare) -> int:
    """What swizzled scales take beyond the checkpoint's, and these where they stay beside them.

    Gate and up are one matrix, whose rows are padded together.
    """
    layout = share.expert_layout
    if not layout.is_swizzled or stored.method != "mxfp4" or tensor.role != "expert" or len(shape) < 3:
        return 0
    matrices, rows, groups = prod(shape[:-2]), shape[-2], shape[-1] // (stored.group_size or 1)
    merged = 1 if tensor.split == "row" else 2
    swizzled = _round_up(rows * merged, _SCALE_ROWS) * _round_up(groups, layout.group_step) // merged
    kept = rows * groups if layout.keeps_scales else 0
    return matrices * (swizzled - rows * groups + kept)


def _is_expert_bias(tensor: Tensor) -> bool:
    return tensor.role == "bias" and ".experts." in tensor.name


def _round_up(number: int, step: int) -> int:
    return -(-number // step) * step


def rank_shape(tensor: Tensor, layout: ParallelLayout, head_rows: int = 1) -> tuple[int, ...]:
    """The tensor's shape on one rank (see ``Tensor.split``); the last dimension of a matrix is its input."""
    tp = layout.tensor_parallel_size
    shape = tensor.shape
    if tensor.is_stacked_experts:
        shape = (-(-shape[0] // layout.expert_groups), *shape[1:])
        tp = layout.expert_slices
    elif "shared_expert" in tensor.name:
        tp = layout.shared_expert_slices
    if tp == 1 or not shape or tensor.split == "replicated":
        return _padded_vocabulary(tensor, shape)
    if tensor.split == "vocab":
        rows = _padded_vocabulary(tensor, shape)[0]
        return (-(-rows // tp), *shape[1:])
    axis = len(shape) - 1 if tensor.split == "row" else max(len(shape) - 2, 0)
    if tensor.split == "ranks":
        axis = 0
    size = -(-shape[axis] // tp)
    if tensor.split == "kv":
        size = max(size, min(head_rows, shape[axis]))
    return (*shape[:axis], size, *shape[axis + 1 :])


def _padded_vocabulary(tensor: Tensor, shape: tuple[int, ...]) -> tuple[int, ...]:
    if tensor.split != "vocab" or not shape:
        return shape
    return (-(-shape[0] // _VOCAB_PADDING) * _VOCAB_PADDING, *shape[1:])


def tower_bytes(spec: ModelSpec, tensor_parallel_size: int, dtype: str) -> int:
    """Vision and audio towers and their projectors, divided over the ranks as vLLM does; not quantized."""
    if spec.checkpoint is not None and spec.checkpoint.towers:
        return stored_rank_bytes(spec.checkpoint.towers, tensor_parallel_size, dtype)
    kinds = ("vision", "audio", "encoder", "projector")
    counted = 0
    for extra in spec.extras:
        if extra.kind not in kinds:
            continue
        counted += extra.num_parameters if extra.num_parameters is not None else _rough_tower(spec.raw_config)
    return -(-counted // tensor_parallel_size) * element_bytes(dtype)


def _rough_tower(config: Mapping[str, object]) -> int:
    """A tower whose exact weights are not known: its blocks' matrices and a merger of 2 x 2 patches."""
    section = config.get("vision_config")
    if not isinstance(section, Mapping):
        return 0
    sizes = [section.get(name) for name in ("embed_dim", "intermediate_size", "num_hidden_layers")]
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        return 0
    hidden, inner, layers = (int(size) for size in sizes if isinstance(size, int))
    merged = 4 * hidden
    return layers * (4 * hidden * hidden + 3 * hidden * inner) + merged * merged + merged * hidden


_MERGED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
_LARGE_ALLOCATION = 10 * MIB
_SEGMENT_STEP = 2 * MIB
_SPLIT_ABOVE = MIB
NEVER_SPLIT_FROM = 20 * MIB


def _allocated_bytes(tensors: Iterable[Tensor], share: WeightShare) -> int:
    """Bytes as PyTorch's allocator counts them: a large tensor takes whole steps of 2 MiB.

    What is left of the last step counts when it is at most 1 MiB: more than that is split off and used for others, if
    the tensor may be split from (``WeightShare.allocator``).
    vLLM merges q, k and v, and gate and up, into one tensor each; scales are tensors of their own.
    """
    return sum(_rounded(size, share) for made in _made_tensors(tensors, share) for size in made.sizes)


@dataclass(slots=True)
class _Made:
    """A tensor that vLLM makes of one or more of the checkpoint's: bytes of its weights, scales and zero points.

    ``plain`` are its bytes in the model's dtype where its format is made while loading, else 0; ``first`` and ``last``
    are the names of the checkpoint's tensors that begin it and complete it, the latter in the order of a file.
    """

    packed: int = 0
    scales: int = 0
    zeros: int = 0
    plain: int = 0
    last: str = ""
    first: str = ""

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.packed, self.scales, self.zeros


def _made_tensors(tensors: Iterable[Tensor], share: WeightShare, *, from_plain: bool = False) -> list[_Made]:
    made: dict[str, _Made] = {}
    for tensor in tensors:
        packed, scales, zeros = _apart(tensor, share)
        name = _merged_name(tensor.name) or tensor.name
        each = made.setdefault(name, _Made(first=name))
        each.packed, each.scales, each.zeros = each.packed + packed, each.scales + scales, each.zeros + zeros
        each.last = max(each.last, tensor.name)
        if from_plain and share.formats.of(tensor, share.layer) is not None:
            each.plain += prod(rank_shape(tensor, share.layout, share.head_rows)) * element_bytes(share.dtype)
    return list(made.values())


def _apart(tensor: Tensor, share: WeightShare) -> tuple[int, int, int]:
    """(weights, their scales and what else belongs to them, zero points)."""
    total, stored = tensor_bytes(tensor, share), share.formats.of(tensor, share.layer)
    if stored is None:
        return total, 0, 0
    shape = _padded_shape(tensor, stored, share)
    packed = ceil(prod(shape) * stored.bits / 8)
    zeros = quantized_bytes(shape, stored) - quantized_bytes(shape, replace(stored, has_zero_points=False))
    return packed, total - packed - zeros, zeros


def _merged_name(name: str) -> str | None:
    """The tensor that ``name`` becomes a part of, beside others of the same module."""
    module, _, last = name.rpartition(".")
    return next((f"{module}.{names[0]}" for names in _MERGED if last in names), None)


def _rounded(size: int, share: WeightShare) -> int:
    if size < _LARGE_ALLOCATION or share.allocator == "expandable":
        return size
    left = -size % _SEGMENT_STEP
    is_split = left > _SPLIT_ABOVE and (share.allocator == "splitting" or size < NEVER_SPLIT_FROM)
    return size if is_split else size + left
