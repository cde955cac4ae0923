"""The kernel variants that must compile for every architecture, and those that stand for every shape."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from kvplan_engine.description.feed_forward import Mixture, Mlp
from kvplan_engine.kernels.cuda.all_reduce import all_reduce_variant
from kvplan_engine.kernels.cuda.attention import (
    HEAD_SIZES,
    AttentionShape,
    decode_launch,
    prefill_launch,
    shared_prefill_launch,
    short_prefill_launch,
)
from kvplan_engine.kernels.cuda.launching.emulation import EMULATED_PROPERTIES
from kvplan_engine.kernels.cuda.launching.runtime import DeviceProperties
from kvplan_engine.kernels.cuda.launching.variants import KernelVariant, variant, write_variant
from kvplan_engine.kernels.cuda.mixtures import (
    LARGE_ROWS,
    ProductShape,
    product_launch,
    product_rows,
    route_variant,
    sort_variant,
    sum_variant,
)
from kvplan_engine.kernels.cuda.products.float8 import BLOCK, float8_launch, quantise_variant
from kvplan_engine.kernels.cuda.products.lora import expand_variant, shrink_variant
from kvplan_engine.kernels.cuda.products.quantised import WeightShape, quantised_launch, widen_variant
from kvplan_engine.kernels.cuda.products.skinny import SkinnyShape, skinny_launch
from kvplan_engine.kernels.cuda.sampling import sample_variant
from kvplan_engine.kernels.cuda.states import (
    convolution_variant,
    delta_variant,
    gate_variant,
    mamba1_variant,
    mamba2_variant,
)
from kvplan_engine.kernels.states.operations import DeltaRule, Gating
from kvplan_engine.paths import source_dir

F32, F16, BF16, FP8, INT8 = torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int8
CAPABILITIES = ((7, 0), (7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0))
NEWER_CAPABILITIES = ((10, 3), (11, 0), (12, 0), (12, 1))
"""Those of tools/check_compilers.py alone: they take the kernels of the ones above."""
SHAPE_CAPABILITY = (9, 0)
"""Every shape is compiled for this one; every kernel for all."""
WGMMA_CAPABILITY = (9, 0)
"""The only one with products of warp groups."""

# KiB of shared memory per block and per multiprocessor: CUDA C++ Programming Guide, "Technical Specifications per
# Compute Capability".
_SHARED_KIB = {
    (7, 0): (96, 96),
    (7, 5): (64, 64),
    (8, 0): (163, 164),
    (8, 6): (99, 100),
    (8, 9): (99, 100),
    (9, 0): (227, 228),
    (10, 0): (227, 228),
    (10, 3): (227, 228),
    (11, 0): (227, 228),
    (12, 0): (99, 100),
    (12, 1): (99, 100),
}
LLAMA = AttentionShape(BF16, BF16, 128, 16, 32, 8)


def properties_of(capability: tuple[int, int]) -> DeviceProperties:
    """A made-up device of that compute capability, with its real shared memory."""
    per_block, per_multiprocessor = _SHARED_KIB[capability]
    return replace(
        EMULATED_PROPERTIES,
        capability=capability,
        num_multiprocessors=80,
        shared_bytes_per_block=per_block * 1024,
        shared_bytes_per_multiprocessor=per_multiprocessor * 1024,
    )


def every_kernel(capability: tuple[int, int]) -> list[KernelVariant]:
    """One or two variants of each kernel, as a device of ``capability`` would take them."""
    return kernels_of_every_model(capability) + kernels_of_some_models(capability)


def kernels_of_some_models(capability: tuple[int, int]) -> list[KernelVariant]:
    """Latent attention, mixtures of experts, layers with a state, quantised weights, adapters, sums over ranks."""
    properties = properties_of(capability)
    scalar = BF16 if properties.has_tensor_kernels else F16
    of_layers = latent_kernels(properties) + mixture_kernels(properties) + state_kernels(scalar)
    of_products = quantised_kernels(scalar, properties) + adapter_kernels(scalar) + [all_reduce_variant(scalar, 8)]
    return of_layers + of_products + (skinny_kernels(properties) if properties.has_tensor_kernels else [])


def kernels_of_every_model(capability: tuple[int, int]) -> list[KernelVariant]:
    """Attention, and what lies between."""
    properties = properties_of(capability)
    scalar = BF16 if properties.has_tensor_kernels else F16
    llama = replace(LLAMA, scalar=scalar, cache=scalar)
    capped = replace(llama, cache=FP8, has_softcap=True, has_sinks=True)
    variants = [
        KernelVariant("attention/plan/plan.cu", "plan_attention"),
        KernelVariant("attention/plan/shared_prefix.cu", "plan_shared_prefixes"),
    ]
    for shape in (llama, replace(llama, cache=FP8), replace(llama, head_size=256)):
        if shared := shared_prefill_launch(shape, properties):
            variants.append(shared.variant)
    if short := short_prefill_launch(llama, properties):
        variants.append(short.variant)
    apart = replace(llama, has_value_tables=True)
    scaled = replace(llama, cache=INT8)
    for shape in (llama, capped, apart, scaled, replace(llama, scalar=F32, cache=F32)):
        variants += [decode_launch(shape, properties).variant, prefill_launch(shape, properties).variant]
    if capability == WGMMA_CAPABILITY:
        variants.append(prefill_launch(llama, properties, wgmma=True).variant)
    variants.append(write_variant(scalar, scalar, 128, 16, 128))
    variants.append(write_variant(scalar, FP8, 64, 16, 0))
    variants.append(write_variant(scalar, INT8, 128, 16, 128))
    norm = {"scalar": scalar, "width": 4096, "threads": 512, "delta": 1, "vectors": 1}
    variants.append(variant("layers/norm.cu", "rms_norm", **norm))
    variants.append(variant("layers/activation.cu", "silu_and_mul", scalar=scalar, vectors=1))
    variants.append(variant("layers/argmax.cu", "argmax_rows", scalar=scalar, vectors=1))
    variants.append(sample_variant(scalar, 128256, vectors=True))
    variants.append(variant("attention/cache/copy_blocks.cu", "copy_blocks"))
    variants.append(variant("layers/copy_inputs.cu", "copy_inputs"))
    return variants


def latent_kernels(properties: DeviceProperties) -> list[KernelVariant]:
    """Attention to DeepSeek V3's rows; those of prompts do not fit Turing's shared memory."""
    scalar = BF16 if properties.has_tensor_kernels else F16
    shape = AttentionShape(scalar, scalar, 576, 16, 128, 1, other_value_size=512, values_in_keys=True)
    decode = decode_launch(shape, properties).variant
    return [decode] if properties.capability == (7, 5) else [decode, prefill_launch(shape, properties).variant]


def mixture_kernels(properties: DeviceProperties) -> list[KernelVariant]:
    """Those of DeepSeek V3's experts: one row, and many of them."""
    scalar = BF16 if properties.has_tensor_kernels else F16
    mixture = Mixture(256, 8, Mlp(2048, "silu"), "sigmoid", correction=True, num_groups=8, top_groups=4)
    many = product_rows(4096, 128, scalar, properties)
    up = ProductShape.up(mixture.expert, scalar)
    sizes = (1, many, LARGE_ROWS) if properties.has_tensor_kernels else (1, many)
    products = [product_launch(up, rows, properties).variant for rows in sizes]
    return [*products, route_variant(mixture, scalar), sort_variant(mixture, many), sum_variant(scalar)]


AWQ = WeightShape(BF16, F32, 4, 128, "linear", True, 16, 4096, 28672)
FLOAT8 = replace(AWQ, bits=8, book="float8", has_minimums=False)


def quantised_kernels(scalar: torch.dtype, properties: DeviceProperties) -> list[KernelVariant]:
    """Products of one row and of many with AWQ's weights, and with FP8's; both widened."""
    awq, float8 = (replace(shape, scalar=scalar) for shape in (AWQ, FLOAT8))
    products = [quantised_launch(awq, rows, properties).variant for rows in (1, 16)]
    products.append(quantised_launch(float8, 1, properties).variant)
    if properties.capability >= (8, 9):
        tiles = [float8_launch(scalar, rows, 7168, properties).variant for rows in (32, 64, 8192)]
        products += [*tiles, quantise_variant(scalar, BLOCK)]
    return [*products, widen_variant(awq), widen_variant(float8), quantise_variant(scalar)]


def every_code() -> list[KernelVariant]:
    """What ``quantised_kernels`` has not: books that are looked up, short groups, float32, few outputs, odd rows."""
    properties = properties_of(SHAPE_CAPABILITY)
    shapes = [
        (replace(AWQ, scalar=F16, book="table", has_minimums=False, group=64), 2),
        (replace(AWQ, scalar=F32, scale=F16, bits=8, group=16), 4),
        (replace(AWQ, scale=F16, group=32, num_outputs=1024), 1),
        (replace(AWQ, scale=F16, group=8, code_bytes=4), 8),
        (replace(FLOAT8, num_outputs=1024), 8),
        (replace(AWQ, scalar=F16, book="table", has_minimums=False, group=16), 16),
        (replace(AWQ, scalar=F32), 8),
    ]
    return [quantised_launch(shape, rows, properties).variant for shape, rows in shapes]


def adapter_kernels(scalar: torch.dtype) -> list[KernelVariant]:
    """Few groups and many, in vectors and not."""
    shrink = [shrink_variant(scalar, True, 1), shrink_variant(scalar, True, 4), shrink_variant(scalar, False, 1)]
    return [*shrink, expand_variant(scalar, True), expand_variant(scalar, False)]


LLAMA_GATED = SkinnyShape(BF16, 14336, 4096, "silu_and_mul")
LLAMA_PLAIN = SkinnyShape(BF16, 4096, 4096)


def skinny_kernels(properties: DeviceProperties) -> list[KernelVariant]:
    """A gated product of up to 8 rows, and a plain one of up to 16."""
    return [skinny_launch(shape, rows, properties).variant for shape, rows in ((LLAMA_GATED, 8), (LLAMA_PLAIN, 16))]


def every_skinny_product() -> list[KernelVariant]:
    """What ``skinny_kernels`` has not: the other numbers of rows, and what needs most registers of activations."""
    properties = properties_of(SHAPE_CAPABILITY)
    shapes = ((LLAMA_GATED, 16), (LLAMA_PLAIN, 8), (SkinnyShape(F16, 3072, 768, "gelu"), 16))
    return [skinny_launch(shape, rows, properties).variant for shape, rows in shapes]


def every_shape() -> list[KernelVariant]:
    """The attention kernels over head sizes, storage types and group sizes, on SHAPE_CAPABILITY.

    Prefill compiles slowly and its fp8 differs in one load, so it has fewer.
    """
    properties = properties_of(SHAPE_CAPABILITY)
    shapes = [AttentionShape(BF16, BF16, size, 16, 32, 8) for size in HEAD_SIZES if size != LLAMA.head_size]
    shapes += [AttentionShape(BF16, BF16, 128, 16, 128, 8), AttentionShape(F16, F16, 128, 5, 7, 1)]
    shapes.append(AttentionShape(BF16, BF16, 128, 16, 32, 32, has_slopes=True))
    decode_only = [AttentionShape(F16, FP8, size, 16, 8, 8) for size in HEAD_SIZES]
    decode_only += [AttentionShape(BF16, BF16, 64, 16, 71, 1), AttentionShape(BF16, BF16, 64, 1, 12, 12)]
    decode = [decode_launch(shape, properties).variant for shape in shapes + decode_only]
    prefill = [prefill_launch(shape, properties).variant for shape in shapes]
    by_groups = [replace(LLAMA, scalar=F16, cache=F16, head_size=64, has_value_tables=True)]
    by_groups += [replace(LLAMA, has_softcap=True, has_sinks=True), replace(LLAMA, has_softcap=True, has_slopes=True)]
    by_groups += [replace(LLAMA, cache=FP8), replace(by_groups[0], cache=FP8, has_softcap=True, has_sinks=True)]
    prefill += [prefill_launch(shape, properties, wgmma=True).variant for shape in by_groups]
    return (
        decode
        + prefill
        + [write_variant(BF16, BF16, 576, 16, 0, value_size=0)]
        + every_product()
        + every_recurrence()
        + every_code()
        + every_skinny_product()
        + [sample_variant(BF16, 50257, vectors=False), sample_variant(F32, 384, vectors=True)]
    )


def every_product() -> list[KernelVariant]:
    """The products of experts that ``mixture_kernels`` has not: other tiles, rows and activations."""
    up, down = ProductShape(BF16, BF16, "swiglu_oai", is_gated=True), ProductShape(BF16, F32)
    shapes = [
        (up, 16),
        (ProductShape(F16, F16, "relu2"), 64),
        (down, 1),
        (down, 16),
        (down, 64),
        (down, LARGE_ROWS),
        (ProductShape(F32, F32), 8),
    ]
    grin = Mixture(16, 2, Mlp(6400, "silu"), "sparse_mixer", normalised=False)
    properties = properties_of(SHAPE_CAPABILITY)
    products = [product_launch(shape, rows, properties).variant for shape, rows in shapes]
    return [*products, route_variant(grin, BF16)]


def state_kernels(scalar: torch.dtype) -> list[KernelVariant]:
    """Those of Qwen3-Next, Mamba 2 and Jamba."""
    return [
        convolution_variant(scalar, scalar, 4, silu=True),
        delta_variant(scalar, F32, _delta_rule(128, 32), has_strength=True),
        mamba2_variant(scalar, F32, 128, 64),
        mamba1_variant(scalar, F32, 16),
        gate_variant(scalar, Gating(torch.ones(128))),
    ]


def every_recurrence() -> list[KernelVariant]:
    """Kimi's decays of each element, linear attention with fixed ones, and the longest rows."""
    rules = ((_delta_rule(128, 32 * 128), True), (_delta_rule(96, 0), False))
    delta = [delta_variant(BF16, F32, rule, has_strength=has_strength) for rule, has_strength in rules]
    return [*delta, mamba2_variant(BF16, BF16, 512, 64), mamba1_variant(BF16, F32, 32)]


def _delta_rule(key_size: int, num_biases: int) -> DeltaRule:
    bias = torch.zeros(num_biases) if num_biases else None
    return DeltaRule(32, 16, key_size, 128, torch.zeros(32), bias)


@dataclass(frozen=True, slots=True)
class Resources:
    """What ptxas says that one kernel takes."""

    registers: int
    spill_bytes: int
    """Stores and loads together."""
    shared_bytes: int
    """Static; the dynamic part is the launch's."""


def parse_resources(log: str, kernel: str) -> Resources:
    """The figures of ``kernel`` in a log of ptxas -v, which must not say that the kernel is slower than it need be."""
    assert "Potential Performance Loss" not in log, log
    section = log.split(f"entry function '{kernel}'", 1)[1].split("entry function '", 1)[0]
    registers = re.search(r"Used (\d+) registers", section)
    spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", section)
    shared = re.search(r"(\d+) bytes smem", section)
    assert registers is not None, log
    assert spills is not None, log
    return Resources(
        registers=int(registers.group(1)),
        spill_bytes=int(spills.group(1)) + int(spills.group(2)),
        shared_bytes=int(shared.group(1)) if shared else 0,
    )


def find_nvcc() -> str | None:
    """nvcc on PATH, if there is one."""
    return shutil.which("nvcc")


def nvcc_release(nvcc: str) -> str:
    """13.0, say."""
    said = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"release (\d+\.\d+)", said)
    assert found is not None, said
    return found.group(1)


def nvcc_architectures(nvcc: str) -> set[str]:
    """sm_ names of what this nvcc compiles for."""
    listed = subprocess.run([nvcc, "--list-gpu-arch"], capture_output=True, text=True, check=True)
    return {name.replace("compute_", "sm_") for name in listed.stdout.split()}


def compile_with_nvcc(nvcc: str, chosen: KernelVariant, architecture: str) -> Resources:
    """The variant through nvcc with all warnings as errors."""
    source = source_dir() / "cuda" / chosen.source
    architecture = chosen.only_for or architecture
    code = f"-gencode=arch={architecture.replace('sm_', 'compute_')},code={architecture}"
    with tempfile.TemporaryDirectory() as folder:
        command = [nvcc, "-cubin", "-std=c++17", code, "-Werror", "all-warnings", "-Xptxas", "-v"]
        command += [*chosen.flags(), str(source), "-o", str(Path(folder) / "kernel.cubin")]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{chosen.label()} for {architecture}: {result.stderr}"
    return parse_resources(result.stderr, chosen.kernel)
