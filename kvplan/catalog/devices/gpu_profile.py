"""A GPU or CPU host as a type: what the driver reports, dense speed, links, price; every number with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from kvplan.errors import KvplanError, UsageError

NETWORK_GIVEN: Final = "given with --network"
ASSUMED_NODE_NETWORK_BYTES_PER_SECOND: Final = 12.5e9
"""Between nodes, where no reference system is known: 100 Gb/s Ethernet, shared by the GPUs of a node. It is said."""


@dataclass(frozen=True, slots=True)
class GpuPrice:
    """What one GPU costs to rent for an hour, in US dollars, with the day and the place of the figure."""

    usd_per_hour: float
    date: str
    source: str


@dataclass(frozen=True, slots=True)
class GpuProfile:
    """One device. ``memory_bytes`` is the driver's total, not the marketing size; ``dense_flops`` are without sparsity.
    ``listed_memory_bytes``: the total that nvidia-smi lists, of which the driver keeps a part; None where not known.

    Bandwidths are bytes per second and one direction. ``multiprocessors`` is the number of SMs or compute units (0 for
    a CPU). ``l2_cache_bytes`` is 0 where it is not known. ``nvlink_gpus``: how many GPUs NVLink switches join: those of
    a node, or of a rack of nodes. ``network_bytes_per_second``: one GPU's share of what leaves them. ``bridged_gpus``:
    cards whose NVLink needs a bridge, and how many one joins; None where it needs none. The bridge is sold apart:
    ``has_bridge`` says that it is there. ``peer_access``: whether cards read each other's memory over PCIe.
    ``part_of``: of a MIG slice, the id of its GPU. ``rented_as``: the cloud's instance that it stands in, whose GPUs
    are those of a node. ``sources`` maps a field's name to where it was found.
    """

    id: str
    name: str
    vendor: str
    aliases: tuple[str, ...]
    memory_bytes: int
    memory_bandwidth_bytes_per_second: float
    dense_flops: Mapping[str, float] = field(hash=False)
    compute_capability: str
    multiprocessors: int
    pcie_bytes_per_second: float | None
    nvlink_bytes_per_second: float | None
    bridged_gpus: int | None
    network_bytes_per_second: float
    max_gpus_per_node: int
    nvlink_gpus: int
    unified_memory: bool
    price: GpuPrice | None
    note: str | None
    sources: Mapping[str, str] = field(compare=False, hash=False, repr=False)
    has_bridge: bool = False
    part_of: str | None = None
    rented_as: str | None = None
    peer_access: bool = True
    l2_cache_bytes: int = 0
    listed_memory_bytes: int | None = None

    @property
    def is_cpu(self) -> bool:
        return self.vendor == "cpu"

    @property
    def architecture(self) -> str:
        """Return the name that goes with the compute capability; the vendor's for others than NVIDIA's."""
        if self.vendor != "nvidia":
            return self.vendor.upper()
        major = self.compute_capability.split(".")[0]
        return _ARCHITECTURES.get(self.compute_capability) or _ARCHITECTURES.get(major, self.compute_capability)

    @property
    def has_known_network(self) -> bool:
        """Whether its network is that of a reference system, or was given."""
        return "network_bandwidth" in self.sources

    def joins_by_nvlink(self, num_gpus: int) -> bool:
        """Whether NVLink is there between any two of ``num_gpus`` neighbours of one node or rack."""
        if self.nvlink_bytes_per_second is None or num_gpus > self.nvlink_gpus:
            return False
        return self.bridged_gpus is None or (self.has_bridge and num_gpus <= self.bridged_gpus)

    def sends_through_host(self, num_gpus: int) -> bool:
        """Whether what ``num_gpus`` neighbours send each other goes through the host's memory."""
        return not self.peer_access and not self.joins_by_nvlink(num_gpus)

    def link_bytes_per_second(self, num_gpus: int) -> float | None:
        """What ``num_gpus`` neighbours talk over: NVLink where it joins them, else PCIe, else nothing known."""
        return self.nvlink_bytes_per_second if self.joins_by_nvlink(num_gpus) else self.pcie_bytes_per_second

    def with_bridge(self) -> GpuProfile:
        """The same card in pairs that a bridge joins; others as they are."""
        return self if self.bridged_gpus is None else replace(self, has_bridge=True)

    def with_network(self, bytes_per_second: float, source: str | None = NETWORK_GIVEN) -> GpuProfile:
        """The same GPU with another network; source None: an assumption."""
        known = {} if source is None else {"network_bandwidth": source}
        sources = MappingProxyType({k: v for k, v in self.sources.items() if k != "network_bandwidth"} | known)
        return replace(self, network_bytes_per_second=bytes_per_second, sources=sources)

    def flops(self, dtype: str) -> float:
        """Dense operations per second in ``dtype``; a format the device lacks is computed in the next wider one."""
        for candidate in (dtype, *_WIDER_DTYPES.get(dtype, ("bfloat16", "float16", "float32"))):
            if candidate in self.dense_flops:
                return self.dense_flops[candidate]
        return max(self.dense_flops.values())


_ARCHITECTURES: Final = {
    "7.0": "Volta",
    "7.5": "Turing",
    "8": "Ampere",
    "8.9": "Ada",
    "9": "Hopper",
    "10": "Blackwell",
    "12": "Blackwell",
}
_WIDER_DTYPES: dict[str, tuple[str, ...]] = {
    "fp4": ("fp8", "bfloat16", "float16", "float32"),
    "fp8": ("bfloat16", "float16", "float32"),
    "int8": ("bfloat16", "float16", "float32"),
    "bfloat16": ("float16", "float32"),
    "float16": ("bfloat16", "float32"),
    "float32": ("bfloat16", "float16"),
}


REACHED_SHARE: Final = 0.7
"""Share of a bus's bandwidth by its data sheet: loads of 1.37 GB at 41 to 47 GB/s are in LMCache's log (LMCache pull
request 1740), where PCIe 5.0 x16 has 64."""


def host_bytes_per_second(gpu: GpuProfile) -> float:
    """What a GPU's bus reaches. KvplanError where its data sheet is not known."""
    if gpu.pcie_bytes_per_second is None:
        raise KvplanError(f"It is not known how fast {gpu.id} reads host memory.", hint="use other GPUs")
    return REACHED_SHARE * gpu.pcie_bytes_per_second


def parse_price(text: str) -> tuple[str, float]:
    """``"h100-sxm=2.1"`` -> the name as written, and US dollars per hour of one. UsageError for anything else."""
    name, equals, amount = text.partition("=")
    usd = read_usd(amount)
    if not equals or not name.strip() or usd is None:
        raise UsageError(f"--price '{text}' is not NAME=USD_PER_HOUR.", hint="for example --price h100-sxm=2.1")
    return name.strip(), usd


def read_usd(text: str) -> float | None:
    """``2.1`` or ``$2.1``; None for what is no amount of 0 or more."""
    try:
        usd = float(text.strip().removeprefix("$"))
    except ValueError:
        return None
    return usd if 0 <= usd < float("inf") else None


def usd_per_million_tokens(usd_per_hour: float, tokens_per_second: float) -> float:
    """Return what a million tokens cost where so many are made in a second."""
    return usd_per_hour / 3600 / tokens_per_second * 1e6
