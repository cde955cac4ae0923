"""Compiles every CUDA kernel with several releases of NVRTC, for every architecture that each of them knows.

    python tools/check_compilers.py LIBNVRTC...      paths of libnvrtc.so.12 and libnvrtc.so.13

Needs no GPU. Packages that hold them: nvidia-cuda-nvrtc-cu12 (CUDA 12), nvidia-cuda-nvrtc (13), each with
``pip install --no-deps --target FOLDER``. Prints a table for docs/gpu.md; exit code 1 where a kernel does not compile,
warns, or keeps registers in memory. CI compiles with one release (tests/engine/cuda/compiler/test_compile_gate.py).
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "engine" / "cases"))

from kernel_matrix import CAPABILITIES, NEWER_CAPABILITIES, every_kernel, parse_resources

from kvplan_engine.kernels.cuda.launching.nvrtc import Nvrtc, load_library
from kvplan_engine.kernels.cuda.launching.variants import CudaKernelError, KernelVariant

_FIRST: Final = (8, 0)
_PARALLEL: Final = 2


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("libraries", nargs="+", metavar="LIBNVRTC")
    print("| NVRTC | device | compiled for | kernels | most registers | spill | complaints |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    complaints = []
    for path in parser.parse_args().libraries:
        nvrtc = Nvrtc(load_library(path), path)
        for capability in sorted((*CAPABILITIES, *NEWER_CAPABILITIES)):
            if capability >= _FIRST:
                complaints += _compile_all(nvrtc, capability)
    print("\n".join(complaints), file=sys.stderr)
    return 1 if complaints else 0


def _compile_all(nvrtc: Nvrtc, capability: tuple[int, int]) -> list[str]:
    """Print the row of one architecture; what the compiler complained of, a line each."""
    arch = nvrtc.architecture_for(capability)
    with ThreadPoolExecutor(_PARALLEL) as pool:
        found = list(pool.map(lambda one: _compile(nvrtc, one, arch), every_kernel(capability)))
    complaints = [text for _, _, text in found if text]
    spilling = sum(spill > 0 for _, spill, _ in found)
    release = "{}.{}".format(*nvrtc.version)
    cells = (release, "{}.{}".format(*capability), arch, len(found), max(one[0] for one in found), spilling)
    print("| " + " | ".join(map(str, (*cells, len(complaints)))) + " |", flush=True)
    return [f"{release} {arch}: {text}" for text in complaints]


def _compile(nvrtc: Nvrtc, variant: KernelVariant, arch: str) -> tuple[int, int, str]:
    """Registers, bytes of registers kept in memory, and what was complained of. PTX has no registers yet."""
    try:
        compiled = nvrtc.compile(variant, variant.only_for or arch, ("--ptxas-options=-v",))
    except CudaKernelError as error:
        return 0, 0, str(error)
    text = "; ".join(f"{variant.label()}: {line}" for line in compiled.warnings)
    if not compiled.architecture.startswith("sm_"):
        return 0, 0, text
    resources = parse_resources(compiled.log, variant.kernel)
    if resources.spill_bytes:
        text = f"{text} {variant.label()} spills {resources.spill_bytes} bytes".strip()
    return resources.registers, resources.spill_bytes, text


if __name__ == "__main__":
    sys.exit(main())
