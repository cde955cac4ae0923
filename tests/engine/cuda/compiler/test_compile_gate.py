"""Every kernel compiles for every architecture without a warning, and takes the registers that csrc/cuda says it takes.

What is as it was when a compiler said yes is not compiled again (``gate_results``). CI compiles every fourth kernel
for the architecture of every shape, and every second for one of the others; all for all is `make exhaustive`.
Needs no GPU: NVRTC comes as the package nvidia-cuda-nvrtc-cu12 (12.8 knows sm_70 to sm_120), nvcc with a toolkit. No
package has nvcc; where there is one, it is the second compiler on a few architectures.
After a change that is meant, write the figures anew:
    PYTHONPATH=.:engine:tests/engine/cases python tests/engine/cuda/compiler/test_compile_gate.py
"""

from __future__ import annotations

import inspect
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gate_results
import pytest
from gate_results import known_resources
from kernel_matrix import (
    CAPABILITIES,
    SHAPE_CAPABILITY,
    Resources,
    compile_with_nvcc,
    every_kernel,
    every_shape,
    find_nvcc,
    kernels_of_every_model,
    kernels_of_some_models,
    nvcc_architectures,
    nvcc_release,
    parse_resources,
)

from kvplan_engine.kernels.cuda.launching.nvrtc import Nvrtc, compile_options, load_nvrtc
from kvplan_engine.kernels.cuda.launching.variants import CudaKernelError, KernelVariant
from kvplan_engine.paths import source_dir

RECORD = source_dir() / "cuda" / "resources.json"
NVCC_RELEASE = "13.0"
"""The one under which nothing may spill either: the compiler of torch's builds for CUDA 13 is its sibling."""
NVCC_CAPABILITIES = ((7, 5), SHAPE_CAPABILITY, (10, 0))
"""Where nvcc compiles too: without tensor cores, with them, and on the newest. NVRTC compiles the same for the rest."""
NVCC_FOR_ALL = ((7, 5), SHAPE_CAPABILITY)
"""Where nvcc compiles every kernel; elsewhere only those that every model has."""
PARALLEL = 2


def find_nvrtc() -> Nvrtc | None:
    try:
        return load_nvrtc()
    except CudaKernelError:
        return None


def architecture(capability: tuple[int, int]) -> str:
    return "sm_{}{}".format(*capability)


def measure_one(nvrtc: Nvrtc, variant: KernelVariant, arch: str) -> Resources:
    chosen, extra = variant.only_for or arch, ("--ptxas-options=-v",)

    def compile_now() -> Resources:
        compiled = nvrtc.compile(variant, chosen, extra)
        assert not compiled.warnings, f"{variant.label()} for {arch}: {compiled.warnings}"
        return parse_resources(compiled.log, variant.kernel)

    options = compile_options(variant, chosen, Path())
    return known_resources(variant, Path(nvrtc.path), (str(nvrtc.version), *options, *extra), compile_now)


def measure_with_nvcc(nvcc: str, release: str, variant: KernelVariant, arch: str) -> Resources:
    told = ("nvcc", release, variant.only_for or arch, inspect.getsource(compile_with_nvcc))
    return known_resources(variant, Path(nvcc), told, lambda: compile_with_nvcc(nvcc, variant, arch))


def measure(nvrtc: Nvrtc, variants: list[KernelVariant], arch: str) -> dict[str, dict[str, int]]:
    """Figures by kernel label, ready to be stored."""
    with ThreadPoolExecutor(PARALLEL) as pool:
        found = pool.map(lambda variant: measure_one(nvrtc, variant, arch), variants)
        return {
            variant.label(): {
                "registers": one.registers,
                "spill_bytes": one.spill_bytes,
                "shared_bytes": one.shared_bytes,
            }
            for variant, one in zip(variants, found, strict=True)
        }


def variants_for(capability: tuple[int, int]) -> list[KernelVariant]:
    extra = every_shape() if capability == SHAPE_CAPABILITY else []
    return list(dict.fromkeys(every_kernel(capability) + extra))


def part_of(variants: list[KernelVariant], capability: tuple[int, int]) -> list[KernelVariant]:
    """Those that CI compiles for this architecture."""
    others = [one for one in CAPABILITIES if one != SHAPE_CAPABILITY]
    return variants[others.index(capability) :: 2 * len(others)] if capability in others else variants[::4]


@pytest.mark.slow
@pytest.mark.parametrize("capability", CAPABILITIES, ids=architecture)
def test_nvrtc_compiles_every_kernel(capability: tuple[int, int], exhaustive: bool) -> None:
    nvrtc = find_nvrtc()
    if nvrtc is None:
        pytest.skip("no NVRTC on this machine: pip install nvidia-cuda-nvrtc-cu12")
    if capability not in nvrtc.supported_capabilities():
        pytest.skip(f"NVRTC {nvrtc.version} does not compile for {architecture(capability)}; 12.8 does")
    recorded = json.loads(RECORD.read_text())
    variants = variants_for(capability)
    figures = recorded["kernels"][architecture(capability)]
    assert figures.keys() == {one.label() for one in variants}, f"if this is meant, run python {__file__}"
    part = variants if exhaustive else part_of(variants, capability)
    found = measure(nvrtc, part, architecture(capability))
    if list(nvrtc.version) != recorded["nvrtc_version"]:
        return  # another compiler allocates registers its own way: compiling without a warning is the test
    assert found == {label: figures[label] for label in found}, f"if this is meant, run python {__file__}"


@pytest.mark.slow
@pytest.mark.parametrize("capability", NVCC_CAPABILITIES, ids=architecture)
def test_nvcc_compiles_every_kernel(capability: tuple[int, int]) -> None:
    nvcc = find_nvcc()
    if nvcc is None:
        pytest.skip("no nvcc on this machine")
    if architecture(capability) not in nvcc_architectures(nvcc):
        pytest.skip(f"this nvcc does not compile for {architecture(capability)}")
    variants = kernels_of_every_model(capability)
    if capability in NVCC_FOR_ALL:
        variants += kernels_of_some_models(capability)
    with ThreadPoolExecutor(PARALLEL) as pool:
        release, arch = nvcc_release(nvcc), architecture(capability)
        found = list(pool.map(lambda one: measure_with_nvcc(nvcc, release, one, arch), variants))
    spilling = [one.label() for one, figures in zip(variants, found, strict=True) if figures.spill_bytes]
    assert release != NVCC_RELEASE or spilling == []


def test_only_what_changed_is_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVPLAN_CACHE_DIR", str(tmp_path))
    (variant, *_), compiled = kernels_of_every_model(SHAPE_CAPABILITY), []

    def asked(*options: str) -> Resources:
        def compile_now() -> Resources:
            compiled.append(options)
            return Resources(len(compiled), 0, 0)

        return known_resources(variant, Path(__file__), options, compile_now)

    assert [asked("12.8").registers, asked("12.8").registers, asked("13.0").registers] == [1, 1, 2]
    monkeypatch.setattr(gate_results, "_digest", lambda _: "another source")
    assert asked("12.8").registers == 3

    def refuse() -> Resources:
        raise AssertionError("a warning")

    for _ in range(2):  # what fails is not kept
        with pytest.raises(AssertionError, match="a warning"):
            known_resources(variant, Path(__file__), ("new",), refuse)


def test_nothing_spills_in_the_record() -> None:
    recorded = json.loads(RECORD.read_text())["kernels"]
    assert set(recorded) == set(map(architecture, CAPABILITIES))
    assert spilling_kernels(recorded) == []


def spilling_kernels(kernels: dict[str, dict[str, dict[str, int]]]) -> list[str]:
    """Architecture and label of each kernel that keeps registers in memory."""
    return sorted(f"{arch} {label}" for arch, k in kernels.items() for label, one in k.items() if one["spill_bytes"])


def write_record(path: Path) -> None:
    """Compile everything and store the figures."""
    nvrtc = load_nvrtc()
    kernels = {architecture(c): measure(nvrtc, variants_for(c), architecture(c)) for c in CAPABILITIES}
    path.write_text(json.dumps({"nvrtc_version": nvrtc.version, "kernels": kernels}, indent=1) + "\n")
    print(f"{path}: {sum(map(len, kernels.values()))} kernels by NVRTC {nvrtc.version}")
    for name in spilling_kernels(kernels):
        print("spills:", name)


if __name__ == "__main__":
    write_record(RECORD)
