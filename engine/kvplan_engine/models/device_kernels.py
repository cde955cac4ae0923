"""The kernels of a device, in one object: attention, the operations around it, matrix products, all layers in one call.

Which of them run is decided here and nowhere else. A new kind of device is a function like ``_cuda`` and its line in
``_KERNELS``; a new way to store weights is a class in ``layers`` and its place in ``projections``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from kvplan_engine.adapters.library import SiteSlots
from kvplan_engine.adapters.lora_linear import LoraProjections
from kvplan_engine.adapters.step_rows import StepRows
from kvplan_engine.attention.cpu import CpuBackend
from kvplan_engine.attention.cuda import CudaBackend
from kvplan_engine.attention.reference import ReferenceBackend
from kvplan_engine.config import EngineConfig
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.description.parameters import model_parameters
from kvplan_engine.description.weight_format import WeightFormat
from kvplan_engine.device.collectives import Collectives
from kvplan_engine.device.custom_all_reduce import choose_all_reduce
from kvplan_engine.errors import EngineError, SettingsError
from kvplan_engine.kernel_checks.operation_cases import correct_in_torch
from kvplan_engine.kernel_checks.run import check_kernels, refuse_or_report
from kvplan_engine.kernel_checks.use import KernelUse, use_of
from kvplan_engine.kernel_checks.verdicts import NO_VERDICTS, Store, Verdicts
from kvplan_engine.kernels import torch_ops
from kvplan_engine.kernels.cpu import lora
from kvplan_engine.kernels.cpu import ops as cpu_ops
from kvplan_engine.kernels.cpu.library import STORAGE_CODES, CpuKernels, cpu_kernels, load_kernels
from kvplan_engine.kernels.cpu.states import CpuStates
from kvplan_engine.kernels.cuda.launching import families
from kvplan_engine.kernels.cuda.launching.driver import current_runtime
from kvplan_engine.kernels.cuda.launching.runtime import CudaRuntime
from kvplan_engine.kernels.cuda.ops import CudaOps
from kvplan_engine.kernels.cuda.products.lora import CudaLora
from kvplan_engine.kernels.cuda.sampling import CudaDraws
from kvplan_engine.kernels.cuda.states import CudaStates
from kvplan_engine.kernels.cuda.step_memory import StepMemory
from kvplan_engine.kernels.states.operations import TorchStates
from kvplan_engine.layers.cuda_skinny import SkinnyWeights
from kvplan_engine.layers.divided import DividedMixtures, DividedProjections, ShardBuffer
from kvplan_engine.layers.head_products import PanelHeads, TorchHeads
from kvplan_engine.layers.linear import FewRowsLinear, Linear, OneDnnLinear, Panels
from kvplan_engine.layers.mixture import CudaMixtures, PanelMixtures, TorchMixture
from kvplan_engine.layers.norm import Norm
from kvplan_engine.layers.projection import ProjectionKind
from kvplan_engine.layers.quantised_linear import CudaQuantisedWeights, QuantisedPanels, WidenedRows
from kvplan_engine.memory.step_buffers import ATTENTION_PARTS, LORA_INNER, WIDENED
from kvplan_engine.models.decoder_layer import DecoderLayer
from kvplan_engine.models.one_call import CpuLayerRun
from kvplan_engine.models.part_kernels import PartKernels

logger = logging.getLogger("kvplan_engine")

REFERENCE = "reference"

MakeLayerRun = Callable[[Sequence[DecoderLayer], Norm, StepRows | None], CpuLayerRun | None]


def _layer_by_layer(layers: Sequence[DecoderLayer], final_norm: Norm, adapters: StepRows | None) -> None:
    """Run the layers one by one, for kernels that have no call for all layers."""


def _one_after_the_other(is_on: bool | None) -> None:
    """Do nothing, for devices whose kernels begin when the one before has ended."""


@dataclass(frozen=True, slots=True)
class DeviceKernels(PartKernels):
    """What computes a model. make_layer_run: all its layers in one call, or None where they cannot be run so.

    memory: by the names of ``memory.device_buffers``, what kernels need of the workspace. adapters: what corrects
    products in each step; None where nothing does. shards: where parts of divided logits come together, None without.
    takes_plain_weights: of those in few bits they take only such (``HeldWeights.plain``). overlap_launches: switches
    ``EngineConfig.enable_pdl`` on or off. draws: chooses the tokens of a step; None where the sampler does. few_rows:
    stands before the last of ``projections`` where ``EngineConfig.linear_backend`` asks for it, or by itself where
    ``verdicts`` say so. check: the same kernels, checked on the device; None where that is not done. verdicts: what it
    found. is_capturable: none of the operations waits for the device. shares_memory: with other ranks, for small
    sums; None where none can be made. name: of these kernels in what is recorded, such as cpu-avx512, cuda, or
    reference for plain torch.
    """

    make_layer_run: MakeLayerRun = _layer_by_layer
    memory: Mapping[str, StepMemory] = field(default_factory=dict)
    adapters: StepRows | None = None
    takes_plain_weights: bool = False
    shards: ShardBuffer | None = None
    overlap_launches: Callable[[bool | None], None] = _one_after_the_other
    draws: CudaDraws | None = None
    few_rows: ProjectionKind | None = None
    check: Callable[[KernelUse], DeviceKernels] | None = None
    verdicts: Verdicts = NO_VERDICTS
    is_capturable: bool = True
    shares_memory: CudaRuntime | None = None
    name: str = REFERENCE

    def checked(
        self, model: ModelDescription, config: EngineConfig, dtype: str, formats: tuple[WeightFormat, ...] = ()
    ) -> DeviceKernels:
        """The same kernels for ``model``, after the check of a first start: those that fail have been replaced.

        formats: of weights held in few bits. EngineError where nothing can stand in for one that fails.
        """
        return self if self.check is None else self.check(use_of(model, config, dtype, formats))

    def check_rounding(self) -> None:
        """SettingsError where products with weights in few bits cannot round what they multiply."""
        if self.takes_plain_weights:
            raise SettingsError(
                "activation_quantization 'int8' is for a CPU: the CUDA kernels do not round activations.",
                hint="leave it out, or set device='cpu'",
            )

    def with_linears(self, name: str) -> DeviceKernels:
        """The same kernels, dense products by ``EngineConfig.linear_backend``; SettingsError where they lack them."""
        if name == "auto" and not self.verdicts.uses(families.SKINNY):
            return self
        if self.few_rows is None:
            raise SettingsError(
                f"linear_backend '{name}' is for a GPU.",
                hint="leave it out: a CPU has such products of its own",
            )
        if name == "torch" or families.SKINNY in self.verdicts.avoided:
            return self
        return replace(self, projections=(*self.projections[:-1], self.few_rows, self.projections[-1]))

    def divided(
        self, model: ModelDescription, collectives: Collectives, dtype: torch.dtype, *, custom_all_reduce: bool = True
    ) -> DeviceKernels:
        """The same kernels for a rank's part of a model, ``model``: products over a rank's inputs become sums.

        All ranks call it. custom_all_reduce: of small sums, where the ranks find that it is right and faster.
        """
        if custom_all_reduce and self.shares_memory is not None:
            is_right = families.ALL_REDUCE not in self.verdicts.avoided
            choice = choose_all_reduce(self.shares_memory, collectives, dtype, is_right=is_right)
            collectives.use_custom(choice.all_reduce)
            if collectives.rank.index == 0:
                logger.info("custom all-reduce: %s", choice.why)
        summed = frozenset(
            each.name.removesuffix(".weight")
            for each in model_parameters(model)
            if each.split == "inputs" and not each.part.startswith("experts.")
        )
        projections = DividedProjections(self.projections, summed, collectives)
        mixtures = (DividedMixtures(self.mixtures, collectives),)
        return replace(self, projections=(projections, *self.projections), mixtures=mixtures, shards=projections.shards)

    def corrected(self, sites: Mapping[str, SiteSlots], step: StepRows) -> DeviceKernels:
        """The same kernels, whose products of ``sites`` are corrected as ``step`` says."""
        projections = LoraProjections(self.projections, sites, step, self.correct)
        return replace(self, projections=(projections, *self.projections), adapters=step)


def select_kernels(name: str, device: torch.device | str, dtype: torch.dtype) -> DeviceKernels:
    """The kernels called ``name`` (``EngineConfig.attention_backend``), or for "auto" the fastest on ``device``.

    "auto" falls back to the reference where the CPU's kernels cannot be had, with one line in the log when that is for
    want of a compiler; kernels asked for by name that cannot run raise EngineError.
    """
    device_type = torch.device(device).type
    if name == "auto":
        return _fastest(device_type, dtype)
    make = _KERNELS.get(name)
    if make is None:
        raise EngineError(
            f"no attention backend is called {name!r}.", hint="choose one of " + ", ".join(("auto", *_KERNELS))
        )
    return make(device_type, dtype)


def _fastest(device_type: str, dtype: torch.dtype) -> DeviceKernels:
    if device_type == "cuda":
        return _cuda(device_type, dtype)
    kernels = cpu_kernels() if device_type == "cpu" and dtype in STORAGE_CODES else None
    return reference_kernels() if kernels is None else compiled_cpu_kernels(kernels, dtype)


def _cpu(device_type: str, dtype: torch.dtype) -> DeviceKernels:
    if device_type != "cpu" or dtype not in STORAGE_CODES:
        raise EngineError(
            f"the cpu attention backend does not run {dtype} on {device_type}.",
            hint="use float32 or bfloat16 on the cpu device, or attention_backend='auto'",
        )
    return compiled_cpu_kernels(load_kernels(), dtype)


def _cuda(device_type: str, dtype: torch.dtype, *, wgmma: bool = False, shares: bool = False) -> DeviceKernels:
    if device_type != "cuda":
        raise EngineError(f"the cuda attention backend does not run on {device_type}.", hint="use a CUDA device")
    runtime = current_runtime()
    kernels = cuda_kernels(runtime, dtype, wgmma=wgmma, shares=shares)
    return replace(kernels, check=partial(checked_kernels, runtime, dtype))


_KERNELS: dict[str, Callable[[str, torch.dtype], DeviceKernels]] = {
    "cpu": _cpu,
    "reference": lambda device_type, dtype: reference_kernels(),
    "cuda": _cuda,
    "cuda_wgmma": partial(_cuda, wgmma=True),
    "cuda_cascade": partial(_cuda, shares=True),
}


def compiled_cpu_kernels(kernels: CpuKernels, dtype: torch.dtype = torch.float32) -> DeviceKernels:
    """csrc/cpu for a model in ``dtype``.

    With oneDNN's products for bfloat16 where the CPU has AMX and our kernels do not use it.
    """
    attention = CpuBackend(kernels)
    onednn = () if kernels.has_tiles else (OneDnnLinear, FewRowsLinear)
    projections = (QuantisedPanels(kernels), *onednn, Panels(kernels), Linear)
    mixtures = (PanelMixtures(kernels), TorchMixture)
    states, heads = CpuStates(kernels), (PanelHeads(kernels), TorchHeads)
    return DeviceKernels(
        attention,
        cpu_ops,
        projections,
        mixtures,
        states,
        heads,
        partial(lora.correct, kernels),
        partial(CpuLayerRun.of, attention, kernels),
        name=f"cpu-{kernels.instruction_set(dtype)}",
    )


def cuda_kernels(
    runtime: CudaRuntime, dtype: torch.dtype, *, wgmma: bool = False, shares: bool = False
) -> DeviceKernels:
    """csrc/cuda on ``runtime``, with torch's products for weights in ``dtype``; wgmma, shares: see CudaBackend."""
    memory = {name: StepMemory() for name in (WIDENED, LORA_INNER, ATTENTION_PARTS)}
    return DeviceKernels(
        CudaBackend(runtime, wgmma=wgmma, shares=shares, parts=memory[ATTENTION_PARTS]),
        CudaOps(runtime),
        (CudaQuantisedWeights(runtime, memory[WIDENED], dtype), Linear),
        (CudaMixtures(runtime), TorchMixture),
        CudaStates(runtime),
        correct=CudaLora(runtime, memory[LORA_INNER]),
        memory=memory,
        takes_plain_weights=True,
        overlap_launches=partial(_overlap, runtime),
        draws=CudaDraws(runtime),
        few_rows=SkinnyWeights(runtime),
        name="cuda",
    )


def _overlap(runtime: CudaRuntime, is_on: bool | None) -> None:
    """Only where it is asked for: nothing was checked."""
    runtime.overlaps_launches = bool(is_on)


def _overlap_checked(runtime: CudaRuntime, verdicts: Verdicts, is_on: bool | None) -> None:
    """Where it is asked for and passed, or where it also won."""
    family = families.DEPENDENT_LAUNCH
    runtime.overlaps_launches = verdicts.uses(family) if is_on is None else is_on and verdicts.passes(family)


def checked_kernels(
    runtime: CudaRuntime, dtype: torch.dtype, use: KernelUse, store: Store | None = None
) -> DeviceKernels:
    """``cuda_kernels`` for what ``use`` says, checked on ``runtime``; twins stand in for those that fail.

    store: of the verdicts; None for the user's cache. EngineError where nothing can stand in for one that fails.
    """
    verdicts = check_kernels(runtime, use, store)
    refuse_or_report(verdicts)
    avoided, cache = verdicts.avoided, use.storage.cache
    kernels = cuda_kernels(
        runtime,
        dtype,
        wgmma=verdicts.uses(families.of_cache(families.PREFILL_WGMMA, cache)),
        shares=verdicts.uses(families.of_cache(families.SHARED_PREFIX, cache)),
    )
    for name in avoided & set(families.OPERATIONS):
        setattr(kernels.ops, name, getattr(torch_ops, name))
    attention = kernels.attention
    if families.WRITE_KV in avoided:
        plain = ReferenceBackend()
        for name in ("write_kv", "rotate_and_write"):
            setattr(attention, name, getattr(plain, name))
    quantised, linear = kernels.projections
    has_codes = not avoided & {families.QUANTISED_SIMPLE, families.QUANTISED_WIDEN}
    return replace(
        kernels,
        projections=(quantised if has_codes else WidenedRows, linear),
        mixtures=(TorchMixture,) if families.MIXTURE_SIMPLE in avoided else kernels.mixtures,
        states=TorchStates() if families.STATES in avoided else kernels.states,
        draws=None if families.DRAWS in avoided else kernels.draws,
        correct=correct_in_torch if families.LORA in avoided else kernels.correct,
        overlap_launches=partial(_overlap_checked, runtime, verdicts),
        verdicts=verdicts,
        is_capturable=not avoided & {families.WRITE_KV, families.STATES, families.LORA},
        shares_memory=runtime,
    )


def reference_kernels() -> DeviceKernels:
    """Plain torch, on any device."""
    return DeviceKernels(ReferenceBackend(), torch_ops, (WidenedRows, Linear))
