"""What ranks send each other in a step, and how long that takes over NVLink, PCIe or the network between nodes.

Racks whose NVLink joins the GPUs of all nodes (GB200 NVL72: 72 GPUs in trays of four) are like one node here: vLLM's
all-reduce kernels have a path for them (``_group_can_attempt_mnnvl`` in vllm/distributed/device_communicators/
custom_all_reduce.py of vLLM 0.33), and so have NCCL and the all-to-all kernels.

    tensor parallel     two all-reduces of the hidden states per layer: 2 (tp - 1) / tp times their bytes
    data parallel       of a mixture: before the experts a rank receives tokens, after them it gives the sums back. The
                        tokens of all groups (vLLM's default, all-gather and reduce-scatter), or, at best, only those
                        that chose its experts (all-to-all, as DeepEP's kernels do)
    pipeline parallel   hidden states and residual from stage to stage

Latencies are assumptions, not measurements: ``Efficiency`` has them for one node; between nodes each message takes
``_NETWORK_LATENCIES`` times as long. Where cards cannot read each other's memory (GeForce), vLLM and SGLang leave their
own all-reduce off (``_can_p2p`` in vllm/distributed/device_communicators/custom_all_reduce.py), which the tables
of L40S and RTX PRO 6000 are of, and NCCL goes through the host's memory: a small one takes 39 us over two RTX 5070 Ti
(pull request 39605 of sgl-project/sglang), 40 to 42 us over eight RTX 4090 (issue 1530 of NVIDIA/nccl).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvplan.catalog.devices.gpus import NETWORK_GIVEN, GpuProfile
from kvplan.caveats import Caveat
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speed.steps.work import ModelWork

_NETWORK_LATENCIES = 3.0
_THROUGH_HOST_SECONDS = 40e-6
_NO_LINK_SHARE = 1 / 20
"""A GPU without a stated link: a twentieth of its memory's bandwidth."""


@dataclass(frozen=True, slots=True)
class LinkEfficiency:
    """The share of a link that collectives reach, the latency of one within a node, and how tokens reach experts."""

    share: float
    message_seconds: float
    sends_to_chosen: bool
    """Tokens go to the ranks of their experts only (all-to-all), instead of to all ranks."""

    def between(self, gpu: GpuProfile, num_gpus: int) -> LinkEfficiency:
        """The same for ``num_gpus`` neighbours, whose messages go through the host's memory where they must."""
        if not gpu.sends_through_host(num_gpus):
            return self
        return replace(self, message_seconds=max(self.message_seconds, _THROUGH_HOST_SECONDS))


@dataclass(frozen=True, slots=True)
class Link:
    """One direction, per GPU."""

    bytes_per_second: float
    crosses_nodes: bool

    def seconds(self, moved_bytes: float, efficiency: LinkEfficiency) -> float:
        latency = efficiency.message_seconds * (_NETWORK_LATENCIES if self.crosses_nodes else 1.0)
        return latency + moved_bytes / (self.bytes_per_second * efficiency.share)


def link_between(gpu: GpuProfile, num_gpus: int) -> Link:
    """What ``num_gpus`` neighbouring ranks talk over: the network as soon as they do not fit one node or NVLink rack.

    PCIe as soon as NVLink does not join them all: a ring over bridged pairs is as slow as its slowest hop.
    """
    if num_gpus > neighbours(gpu):
        return Link(gpu.network_bytes_per_second, crosses_nodes=True)
    return Link(_within_node(gpu, num_gpus), crosses_nodes=False)


def neighbours(gpu: GpuProfile) -> int:
    """How many GPUs talk without the network: those of a node, or of a rack that NVLink joins; a MIG slice is alone."""
    return 1 if gpu.part_of is not None else max(gpu.max_gpus_per_node, gpu.nvlink_gpus)


def ring_over(gpu: GpuProfile, num_gpus: int) -> Link:
    """What they send over where all of them gather or sum up the same: each byte leaves a node once, by any adapter.

    So two nodes of eight H200 reach about 350 GB/s (issue 283 of NVIDIA/nccl-tests), eight A100 with adapters of
    100 Gb/s 75 (issue 495 of NVIDIA/nccl), and not what one adapter has.
    """
    link = link_between(gpu, num_gpus)
    if not link.crosses_nodes:
        return link
    in_node = neighbours(gpu)
    return replace(link, bytes_per_second=min(in_node * link.bytes_per_second, _within_node(gpu, in_node)))


def _within_node(gpu: GpuProfile, num_gpus: int) -> float:
    return gpu.link_bytes_per_second(num_gpus) or gpu.memory_bandwidth_bytes_per_second * _NO_LINK_SHARE


def bridge_note(gpu: GpuProfile, layout: ParallelLayout) -> str | None:
    """What is assumed of the bridges between the cards of an instance; None where there is nothing to assume."""
    if gpu.bridged_gpus is None or layout.num_gpus == 1:
        return None
    if not gpu.has_bridge:
        return Caveat(
            "Cards are taken to have no NVLink bridges and to talk over PCIe; --nvlink-bridge puts one on each pair."
        )
    return Caveat("NVLink bridges join the cards in pairs; more than two talk over PCIe.")


def network_note(gpu: GpuProfile, layout: ParallelLayout) -> str | None:
    """What an instance over several nodes talks over, and whether that is known; None within one node."""
    if layout.num_gpus <= gpu.max_gpus_per_node:
        return None
    if layout.num_gpus <= gpu.nvlink_gpus and gpu.nvlink_bytes_per_second is not None:
        return (
            f"NVLink joins up to {gpu.nvlink_gpus} {gpu.id} in nodes of {gpu.max_gpus_per_node}: "
            f"{gpu.nvlink_bytes_per_second / 1e9:,.0f} GB/s for each GPU in each direction."
        )
    between = "racks" if gpu.nvlink_gpus > gpu.max_gpus_per_node else "nodes"
    speed = f"{gpu.network_bytes_per_second * 8 / 1e9:,.3g} Gb/s"
    if not gpu.has_known_network:
        return Caveat(
            f"The network between {between} of {gpu.id} is not known: {speed} for each GPU is an assumption (100 Gb/s "
            "for a node); --network 400 says that each GPU has 400 Gb/s."
        )
    source = gpu.sources["network_bandwidth"]
    system = gpu.rented_as if gpu.rented_as and source.startswith(f"{gpu.rented_as}:") else "its reference system"
    origin = "as given" if source == NETWORK_GIVEN else f"as in {system}; --network states another"
    return f"Between {between} each {gpu.id} has {speed} ({origin})."


@dataclass(frozen=True, slots=True)
class CollectiveCost:
    """All messages of one step, over all stages: ``fixed`` seconds, more for each token that the fullest group works
    on, and for each that any group has in the experts."""

    fixed_seconds: float
    seconds_per_row: float
    seconds_per_met: float = 0.0

    def seconds(self, rows: float, met: float) -> float:
        """With ``rows`` tokens in the fullest group and ``met`` in all of them."""
        return self.fixed_seconds + rows * self.seconds_per_row + met * self.seconds_per_met


def collective_cost(work: ModelWork, gpu: GpuProfile, efficiency: LinkEfficiency) -> CollectiveCost:
    """What the ranks of ``work.layout`` send each other."""
    efficiency = efficiency.between(gpu, work.layout.num_gpus)
    parts = (
        _all_reduces(work, gpu, efficiency),
        _token_exchanges(work, gpu, efficiency),
        _stage_handovers(work, gpu, efficiency),
    )
    return CollectiveCost(
        sum(part.fixed_seconds for part in parts),
        sum(part.seconds_per_row for part in parts),
        sum(part.seconds_per_met for part in parts),
    )


_FREE = CollectiveCost(0.0, 0.0)


def _messages(count: float, link: Link, bytes_per_row: float, efficiency: LinkEfficiency) -> CollectiveCost:
    fixed = link.seconds(0.0, efficiency)
    return CollectiveCost(count * fixed, count * (link.seconds(bytes_per_row, efficiency) - fixed))


def _hidden_bytes(work: ModelWork) -> int:
    """Return the bytes of one token's hidden state."""
    return work.hidden_size * work.activation_bytes


def _all_reduces(work: ModelWork, gpu: GpuProfile, efficiency: LinkEfficiency) -> CollectiveCost:
    tp = work.layout.tensor_parallel_size
    if tp == 1:
        return _FREE
    replaced = work.num_expert_layers if work.layout.exchanges_tokens else 0
    count = 2 * work.num_layers - replaced
    return _messages(count, ring_over(gpu, tp), 2 * (tp - 1) / tp * _hidden_bytes(work), efficiency)


def _token_exchanges(work: ModelWork, gpu: GpuProfile, efficiency: LinkEfficiency) -> CollectiveCost:
    layout = work.layout
    if not (layout.exchanges_tokens and work.num_expert_layers):
        return _FREE
    own = 1 / layout.tensor_parallel_size  # tokens are divided over the ranks of a group before they are sent
    received, link, ranks = layout.data_parallel_size - own, ring_over(gpu, layout.expert_ranks), layout.expert_ranks
    count = 2 * work.num_expert_layers
    gathered = _messages(count, link, received * _hidden_bytes(work), efficiency)
    if efficiency.sends_to_chosen and layout.enable_expert_parallel:
        chosen = ranks * (1 - (1 - 1 / ranks) ** work.experts_per_token)  # that a token's experts lie on, on average
        if chosen * own < received:  # the rank with the most tokens sends them
            return _messages(count, link_between(gpu, ranks), chosen * own * _hidden_bytes(work), efficiency)
    # What a rank gathers is what all groups have.
    per_met = gathered.seconds_per_row / layout.data_parallel_size
    return CollectiveCost(gathered.fixed_seconds, 0.0, per_met)


def _stage_handovers(work: ModelWork, gpu: GpuProfile, efficiency: LinkEfficiency) -> CollectiveCost:
    layout = work.layout
    if layout.pipeline_parallel_size == 1:
        return _FREE
    sent = 2 * _hidden_bytes(work) / layout.tensor_parallel_size
    return _messages(layout.pipeline_parallel_size - 1, link_between(gpu, layout.num_gpus), sent, efficiency)
