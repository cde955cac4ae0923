"""Attention and writing to the pool, for every shape of heads that a model has, against ``ReferenceBackend``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from kvplan_engine.attention.backend import (
    AttentionBackend,
    AttentionInputs,
    AttentionMetadata,
    AttentionOptions,
    KvSlots,
    Rotation,
)
from kvplan_engine.attention.cuda import CudaBackend
from kvplan_engine.attention.layer_cache import LayerCache, latent_cache
from kvplan_engine.attention.reference import ReferenceBackend
from kvplan_engine.kernel_checks.case import TOLERANCE, Case, Comparison, Contest
from kvplan_engine.kernels.cuda.attention import (
    MIN_SHARED,
    AttentionShape,
    shared_prefill_launch,
    short_prefill_launch,
    uses_latent_kernel,
    uses_wgmma_kernel,
)
from kvplan_engine.kernels.cuda.launching import families
from kvplan_engine.kernels.cuda.launching.runtime import CudaRuntime, DeviceProperties
from kvplan_engine.kernels.cuda.launching.variants import CudaKernelError

_SCALE_BYTES = 4
_STEP_OF_A_BYTE = 0.15  # numbers of fp8 are 2^-3 apart


@dataclass(frozen=True, slots=True)
class Heads:
    """How a layer attends. latent_values: of a row that is key and value, what the value has of it; None for pages."""

    num_heads: int
    num_kv_heads: int
    key_size: int
    value_size: int
    scale: float
    window: int | None = None
    softcap: float | None = None
    has_sinks: bool = False
    has_slopes: bool = False
    latent_values: int | None = None
    rotary_size: int = 0


@dataclass(frozen=True, slots=True)
class Storage:
    """scalar: of queries. cache: of the pool."""

    scalar: torch.dtype
    cache: torch.dtype
    block_size: int


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of each sequence, and how many of them are new.

    shared: how many those of a group have in common, whole blocks; groups: in turn, one sequence of each.
    """

    of: tuple[int, ...]
    new: tuple[int, ...]
    shared: int = 0
    groups: int = 1


DECODE = Lengths((300, 17, 1, 65), (1, 1, 1, 1))
PROMPTS = Lengths((200, 70, 9, 1), (150, 70, 5, 1))
LONG_PROMPTS = Lengths((600, 200, 70, 1), (30, 150, 70, 1))
"""Prompts of more tiles of 128 tokens than warp groups have in flight: stages are freed and filled again."""
SHORT = Lengths((90, 33, 40), (2, 1, 2))
SHARED = Lengths(tuple(MIN_SHARED + each for each in (41, 5, 64, 23)), (1,) * 4, MIN_SHARED, groups=2)
_TIMED_PROMPT = Lengths((2048,), (2048,))
_TIMED_SHARED = Lengths(tuple(4096 + each for each in range(16)), (1,) * 16, 4096)
_TIMED_APART = Lengths(tuple(1024 + each for each in range(16)), (1,) * 16)


@dataclass(frozen=True, slots=True)
class AttentionStep:
    """One layer's attention, and the blocks of the pool that it reads."""

    inputs: AttentionInputs
    blocks: torch.Tensor

    @property
    def out(self) -> torch.Tensor:
        return self.inputs.out


def attention_cases(heads: Heads, storage: Storage, properties: DeviceProperties) -> Iterator[Case]:
    """Every kernel that may attend so; none where the engine refuses such heads by itself."""
    shape = _shape(heads, storage)
    try:
        shape.check()
    except CudaKernelError:
        return
    yield _case(heads, storage, DECODE, _chain(shape, properties, families.DECODE_MMA, families.DECODE_SIMPLE))
    yield _case(heads, storage, PROMPTS, _chain(shape, properties, families.PREFILL_MMA, families.PREFILL_SIMPLE))
    short = short_prefill_launch(shape, properties)
    if short is not None and 2 * shape.group <= short.tile_rows:
        yield _case(heads, storage, SHORT, (families.of_cache(families.PREFILL_SHORT, storage.cache),))
    if uses_wgmma_kernel(shape, properties):
        family = families.of_cache(families.PREFILL_WGMMA, storage.cache)
        contest = partial(_prompt_contest, heads, storage)
        yield replace(_case(heads, storage, LONG_PROMPTS, (family,), wgmma=True), contest=contest)
    if heads.window is None and shared_prefill_launch(shape, properties) is not None:
        family = families.of_cache(families.SHARED_PREFIX, storage.cache)
        contest = partial(_shared_contest, heads, storage)
        yield replace(_case(heads, storage, SHARED, (family,), shares=True), contest=contest)
    yield Case((families.WRITE_KV,), partial(_compare_writing, heads, storage))


def _chain(shape: AttentionShape, properties: DeviceProperties, fast: str, simple: str) -> tuple[str, ...]:
    """The kernels that ``shape`` may have, by the order of their launches."""
    if uses_latent_kernel(shape, properties):
        return families.LATENT_MMA, simple
    is_narrow = shape.scalar is not torch.float32 and shape.cache is not torch.int8
    if shape.other_value_size is None and properties.has_tensor_kernels and is_narrow:
        return families.of_cache(fast, shape.cache), simple
    return (simple,)


def _case(
    heads: Heads,
    storage: Storage,
    lengths: Lengths,
    chain: tuple[str, ...],
    *,
    wgmma: bool = False,
    shares: bool = False,
) -> Case:
    return Case(chain, partial(_compare_attending, heads, storage, lengths, wgmma, shares))


def _shape(heads: Heads, storage: Storage) -> AttentionShape:
    is_latent = heads.latent_values is not None
    return AttentionShape(
        storage.scalar,
        storage.cache,
        *(heads.key_size, storage.block_size, heads.num_heads, heads.num_kv_heads),
        has_softcap=heads.softcap is not None,
        has_sinks=heads.has_sinks,
        has_slopes=heads.has_slopes,
        other_value_size=None if heads.value_size == heads.key_size else heads.value_size,
        values_in_keys=is_latent and heads.value_size != heads.key_size,
    )


# ---- the steps


def make_step(
    heads: Heads, storage: Storage, lengths: Lengths, device: torch.device, *, is_random: bool = True
) -> AttentionStep:
    """A layer's step over a pool in which what no token owns is no number. is_random: else for times alone."""
    generator = torch.Generator().manual_seed(len(lengths.of) * 1009 + lengths.of[0])
    tables, num_blocks = _tables(lengths, storage.block_size, generator)
    blocks, cache = _pool(heads, storage, num_blocks, "cpu" if is_random else device)
    if is_random:
        _fill(cache, heads, storage, tables, lengths, generator)
        blocks, cache = _moved(heads, storage, blocks, device)
    num_tokens = sum(lengths.new)
    query = torch.randn(num_tokens, heads.num_heads, heads.key_size, generator=generator).to(storage.scalar).to(device)
    out = torch.zeros(num_tokens, heads.num_heads, heads.value_size, dtype=storage.scalar, device=device)
    starts = torch.tensor([0, *lengths.new]).cumsum(0).to(torch.int32)
    metadata = AttentionMetadata(
        KvSlots(torch.full((num_tokens,), -1, dtype=torch.int64, device=device)),
        tables.to(device),
        torch.tensor(lengths.of, dtype=torch.int32, device=device),
        starts.to(device),
        max(lengths.new),
    )
    return AttentionStep(AttentionInputs(query, cache, metadata, out, _options(heads, device)), blocks)


def _options(heads: Heads, device: torch.device) -> AttentionOptions:
    sinks = torch.linspace(-1, 2, heads.num_heads).to(device) if heads.has_sinks else None
    slopes = torch.linspace(0.01, 0.5, heads.num_heads).to(device) if heads.has_slopes else None
    return AttentionOptions(heads.scale, heads.window, heads.softcap, sinks, slopes)


def _tables(lengths: Lengths, block_size: int, generator: torch.Generator) -> tuple[torch.Tensor, int]:
    """Scattered blocks of each sequence, [S, B] int32, and how many blocks there are."""
    counts = [-(-length // block_size) for length in lengths.of]
    num_blocks = sum(counts) + 1
    order = torch.randperm(num_blocks, generator=generator).to(torch.int32)
    tables = torch.zeros(len(counts), max(counts), dtype=torch.int32)
    taken = 0
    for sequence, count in enumerate(counts):
        tables[sequence, :count] = order[taken : taken + count]
        taken += count
    shared = lengths.shared // block_size
    for first in range(lengths.groups):
        tables[first :: lengths.groups, :shared] = tables[first, :shared].clone()
    return tables, num_blocks


def _pool(
    heads: Heads, storage: Storage, num_blocks: int, device: torch.device | str
) -> tuple[torch.Tensor, LayerCache]:
    """Blocks of bytes that are no numbers, and one layer's views of them."""
    page = heads.num_kv_heads * storage.block_size
    has_scales = storage.cache is torch.int8
    sizes = [heads.key_size] if heads.latent_values is not None else [heads.key_size, heads.value_size]
    page_bytes = [page * size * storage.cache.itemsize + (page * _SCALE_BYTES if has_scales else 0) for size in sizes]
    block_bytes = -(-sum(page_bytes) // 64) * 64
    blocks = torch.full((num_blocks, block_bytes), 0xFF, dtype=torch.uint8, device=device)
    return blocks, _views(heads, storage, blocks)


def _views(heads: Heads, storage: Storage, blocks: torch.Tensor) -> LayerCache:
    tokens, itemsize = (heads.num_kv_heads, storage.block_size), storage.cache.itemsize

    def pages(begin: int, size: int) -> torch.Tensor:
        num_bytes = tokens[0] * tokens[1] * size * itemsize
        return blocks[:, begin : begin + num_bytes].view(storage.cache).unflatten(1, (*tokens, size))

    def scales(begin: int) -> torch.Tensor:
        num_bytes = tokens[0] * tokens[1] * _SCALE_BYTES
        return blocks[:, begin : begin + num_bytes].view(torch.float32).unflatten(1, tokens)

    if heads.latent_values is not None:
        return latent_cache(pages(0, heads.key_size), heads.latent_values, 0)
    page = tokens[0] * tokens[1]
    if storage.cache is not torch.int8:
        return LayerCache(pages(0, heads.key_size), pages(page * heads.key_size * itemsize, heads.value_size), 0)
    key_scales = page * heads.key_size
    values = key_scales + page * _SCALE_BYTES
    value_scales = values + page * heads.value_size
    return LayerCache(
        *(pages(0, heads.key_size), pages(values, heads.value_size), 0),
        key_scales=scales(key_scales),
        value_scales=scales(value_scales),
    )


def _moved(
    heads: Heads, storage: Storage, blocks: torch.Tensor, device: torch.device | str
) -> tuple[torch.Tensor, LayerCache]:
    there = blocks.clone().to(device)
    return there, _views(heads, storage, there)


def _fill(
    cache: LayerCache,
    heads: Heads,
    storage: Storage,
    tables: torch.Tensor,
    lengths: Lengths,
    generator: torch.Generator,
) -> None:
    for table, length in zip(tables, lengths.of, strict=True):
        slots = _slots(table, torch.arange(length), storage.block_size)
        key, value = _rows(heads, storage, length, generator)
        ReferenceBackend().write_kv(key, value, cache, KvSlots(slots))


def _slots(table: torch.Tensor, positions: torch.Tensor, block_size: int) -> torch.Tensor:
    return table[positions // block_size].long() * block_size + positions % block_size


def _rows(
    heads: Heads, storage: Storage, count: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor | None]:
    key = torch.randn(count, heads.num_kv_heads, heads.key_size, generator=generator).to(storage.scalar)
    if heads.latent_values is not None:
        return key, None
    return key, torch.randn(count, heads.num_kv_heads, heads.value_size, generator=generator).to(storage.scalar)


# ---- the checks


def _compare_attending(
    heads: Heads, storage: Storage, lengths: Lengths, wgmma: bool, shares: bool, runtime: CudaRuntime
) -> Comparison:
    return compare_attending(CudaBackend(runtime, wgmma=wgmma, shares=shares), runtime.device, heads, storage, lengths)


def compare_attending(
    backend: AttentionBackend, device: torch.device, heads: Heads, storage: Storage, lengths: Lengths
) -> Comparison:
    """``backend`` on ``device`` against the reference, which computes in float32 from the same stored numbers."""
    step = make_step(heads, storage, lengths, device)
    backend.attend(step.inputs)
    wanted = make_step(heads, storage, lengths, torch.device("cpu")).inputs
    exact = replace(wanted, query=wanted.query.float(), out=torch.zeros(wanted.out.shape))
    ReferenceBackend().attend(exact)
    return Comparison([step.out], [exact.out], TOLERANCE[storage.scalar])


def _compare_writing(heads: Heads, storage: Storage, runtime: CudaRuntime) -> Comparison:
    return compare_writing(CudaBackend(runtime), runtime.device, heads, storage)


def compare_writing(backend: AttentionBackend, device: torch.device, heads: Heads, storage: Storage) -> Comparison:
    """Some rows, one of them padding, rotated on the way where the model has positions that turn."""
    count = 5
    slots = torch.tensor([3, 0, -1, storage.block_size + 1, 2 * storage.block_size - 1])
    sides: tuple[tuple[AttentionBackend, torch.device], ...] = (
        (backend, device),
        (ReferenceBackend(), torch.device("cpu")),
    )
    results = []
    for writer, place in sides:
        generator = torch.Generator().manual_seed(2)
        key, value = _rows(heads, storage, count, generator)
        query = torch.randn(count, heads.num_heads, heads.key_size, generator=generator).to(storage.scalar)
        blocks, cache = _pool(heads, storage, 3, place)
        blocks.zero_()
        there = KvSlots(slots.to(place))
        if heads.rotary_size and value is not None:
            rows = torch.cat([query, key], 1).to(place)
            table = torch.randn(16, heads.rotary_size, generator=generator).to(place)
            writer.rotate_and_write(
                Rotation(rows, torch.arange(count, device=place), table), value.to(place), cache, there
            )
            results.append([rows[:, : heads.num_heads], *_stored(cache)])
        else:
            writer.write_kv(key.to(place), None if value is None else value.to(place), cache, there)
            results.append(_stored(cache))
    tolerance = TOLERANCE[storage.scalar] if storage.cache.itemsize > 1 else _STEP_OF_A_BYTE
    return Comparison(results[0], results[1], tolerance)


def _stored(cache: LayerCache) -> list[torch.Tensor]:
    """What the pool holds, as numbers."""
    if cache.key_scales is None or cache.value_scales is None:
        return [cache.keys.float(), cache.values.float()]
    parts = ((cache.keys, cache.key_scales), (cache.values, cache.value_scales))
    return [pages.float() * scales[..., None] for pages, scales in parts]


# ---- speeds


def _prompt_contest(heads: Heads, storage: Storage, runtime: CudaRuntime) -> Contest:
    """A prompt of 2,048 tokens."""
    step = make_step(heads, storage, _TIMED_PROMPT, runtime.device, is_random=False)
    step.blocks.zero_()
    by_groups, plain = CudaBackend(runtime, wgmma=True), CudaBackend(runtime)
    return Contest(partial(by_groups.attend, step.inputs), partial(plain.attend, step.inputs))


def _shared_contest(heads: Heads, storage: Storage, runtime: CudaRuntime) -> Contest:
    """Sixteen sequences behind 4,096 tokens that they share, and sixteen that share nothing: both count."""
    steps = [
        make_step(heads, storage, lengths, runtime.device, is_random=False) for lengths in (_TIMED_SHARED, _TIMED_APART)
    ]
    for step in steps:
        step.blocks.zero_()
    sharing, plain = CudaBackend(runtime, shares=True), CudaBackend(runtime)
    return Contest(partial(_attend_each, sharing, steps), partial(_attend_each, plain, steps))


def _attend_each(backend: CudaBackend, steps: Sequence[AttentionStep]) -> None:
    for step in steps:
        backend.attend(step.inputs)
