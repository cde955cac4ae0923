"""Ways to spread one instance over GPUs: within a node first, across nodes where that is not enough.

Within a node the layers are shared (tensor parallelism), where NVLink does not join all of it also the stack of layers
(pipeline parallelism), and the experts of a mixture are spread over data-parallel groups. A rack whose NVLink joins all
its nodes counts as one node; of several data-parallel groups each stays in a node of it, as vLLM starts whole groups on
each. Across nodes only what needs little of the network is tried: one pipeline stage for each node, or data-parallel
groups that share the experts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.spec import ModelSpec
from kvplan.errors import UsageError
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speed.steps.collectives import neighbours
from kvplan.estimate.vllm.division import check_division
from kvplan.planner.question.request import ParallelSizes

_TENSOR = (1, 2, 4, 8, 16)
_PIPELINE = (1, 2, 4)
_DATA = (2, 4, 8)
_DATA_OF_RACK = (*_DATA, 16, 32, 64)
_MOST_NODES = 8
_SMALL_NODE = 2
"""Nodes of so few GPUs are joined by tensor parallelism too (two DGX Sparks)."""


def layouts_in_a_node(
    spec: ModelSpec, gpu: GpuProfile, sizes: ParallelSizes, max_gpus: int
) -> tuple[ParallelLayout, ...]:
    """Layouts of at most ``max_gpus`` GPUs that talk without the network, by number of GPUs."""
    most = min(max_gpus, _without_network(gpu, sizes))
    found = (each for each in _candidates(spec, gpu, sizes) if each.num_gpus <= most)
    return _allowed(spec, (each for each in found if _fills_nodes(each, gpu)))


def layouts_across_nodes(
    spec: ModelSpec, gpu: GpuProfile, sizes: ParallelSizes, max_gpus: int
) -> tuple[ParallelLayout, ...]:
    """Layouts of more GPUs than a node has, over at most as many whole nodes as ``max_gpus`` and ``sizes`` allow."""
    if gpu.part_of is not None:
        return ()  # slices have no way to each other
    each = _without_network(gpu, ParallelSizes())
    if sizes.num_nodes is not None and each > gpu.max_gpus_per_node:
        each = min(each, sizes.num_nodes * gpu.max_gpus_per_node)
        sizes = replace(sizes, num_nodes=sizes.num_nodes * gpu.max_gpus_per_node // each)
    nodes = min(max_gpus // each, _MOST_NODES if sizes.num_nodes is None else sizes.num_nodes)
    if nodes < 2:
        return ()
    if _are_given(sizes):
        given = (layout for layout in _candidates(spec, gpu, sizes) if each < layout.num_gpus <= nodes * each)
        return _allowed(spec, given)
    return _allowed(spec, _whole_nodes(spec, each, nodes))


def num_nodes(layout: ParallelLayout, gpu: GpuProfile) -> int:
    """Nodes that one instance spans."""
    return -(-layout.num_gpus // gpu.max_gpus_per_node)


def _without_network(gpu: GpuProfile, sizes: ParallelSizes) -> int:
    """GPUs of one node or rack, as far as the nodes that an instance may span allow."""
    if sizes.num_nodes is None:
        return neighbours(gpu)
    return min(neighbours(gpu), sizes.num_nodes * gpu.max_gpus_per_node)


def _fills_nodes(layout: ParallelLayout, gpu: GpuProfile) -> bool:
    """Whether it is in one node, or has whole ones with whole data-parallel groups in each."""
    per_node = gpu.max_gpus_per_node
    if layout.num_gpus <= per_node:
        return True
    if layout.num_gpus % per_node:
        return False
    group = layout.tensor_parallel_size * layout.pipeline_parallel_size
    return layout.data_parallel_size == 1 or group <= per_node


def _are_given(sizes: ParallelSizes) -> bool:
    return not (sizes.tensor is None and sizes.pipeline is None and sizes.data is None)


def _candidates(spec: ModelSpec, gpu: GpuProfile, sizes: ParallelSizes) -> Iterator[ParallelLayout]:
    has_fabric = gpu.joins_by_nvlink(gpu.max_gpus_per_node)
    groups = _DATA_OF_RACK if gpu.nvlink_gpus > gpu.max_gpus_per_node else _DATA
    given = _are_given(sizes)
    pipeline = sizes.pipeline or ((1,) if given or has_fabric else _PIPELINE)
    data = sizes.data or ((1, *groups) if spec.is_mixture and not given else (1,))
    for tp, pp, dp in product(sizes.tensor or _TENSOR, pipeline, data):
        if sizes.data is None and pp > 1 and dp > 1:
            continue
        whole = sizes.enable_expert_parallel
        yield ParallelLayout(tp, pp, dp, spec.is_mixture and (dp > 1 if whole is None else whole))


def _whole_nodes(spec: ModelSpec, gpus_per_node: int, most: int) -> Iterator[ParallelLayout]:
    nodes = 2
    while nodes <= most:
        yield ParallelLayout(gpus_per_node, nodes)
        if gpus_per_node <= _SMALL_NODE:
            yield ParallelLayout(gpus_per_node * nodes)
        if spec.is_mixture:
            yield ParallelLayout(1, 1, gpus_per_node * nodes, True)
            if gpus_per_node > 1:
                yield ParallelLayout(gpus_per_node, 1, nodes, True)
        nodes *= 2


def _allowed(spec: ModelSpec, layouts: Iterable[ParallelLayout]) -> tuple[ParallelLayout, ...]:
    """Return those that divide the model, each once, with whole experts where slices do not divide."""
    found: dict[ParallelLayout, None] = {}
    for layout in layouts:
        whole = ParallelLayout(
            layout.tensor_parallel_size, layout.pipeline_parallel_size, layout.data_parallel_size, spec.is_mixture
        )
        for each in (layout, whole):
            if layout.pipeline_parallel_size <= spec.num_layers and _divides(spec, each):
                found.setdefault(each)
                break
    return tuple(sorted(found, key=lambda layout: (layout.num_gpus, -layout.tensor_parallel_size)))


def _divides(spec: ModelSpec, layout: ParallelLayout) -> bool:
    try:
        check_division(spec, layout)
    except UsageError:
        return False
    return True
