"""Compiles the libraries of the paper GPU: what is written by hand, and a stub that returns 0 for every other function.

The names come from the libraries and headers that an environment's CUDA wheels have, so that the loader finds under
each name, with the version that the real library gives it, what it asks for. Needs gcc, nm and readelf.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
_NVML_NOT_SUPPORTED = 3


def build(packages: Path, folder: Path) -> list[Path]:
    """Compile into ``folder`` for the site-packages ``packages``; returns the libraries in the order to preload them.

    StopIteration where ``packages`` has no CUDA wheels; subprocess.CalledProcessError where something does not compile.
    """
    core = folder / "libpaper.so"
    _gcc("-shared", HERE / "core.c", "-Wl,-soname,libpaper.so", "-o", core, "-lpthread", "-ldl")
    header = (next(packages.glob("nvidia/cu*/include/cuda.h"))).read_text()
    driver = re.findall(r"CUDAAPI\s+(cu\w+)\s*\(", header) + re.findall(r"#define\s+cu\w+\s+(cu\w+_v\d)\b", header)
    nvml = re.findall(r'"(nvml\w+)"', (packages / "vllm/third_party/pynvml.py").read_text())
    libraries = [core, _library("driver.c", "libcuda.so.1", dict.fromkeys(driver, ""), packages, folder)]
    for source, name in (("runtime.c", "cudart"), ("blaslt.c", "cublasLt"), ("blas.c", "cublas")):
        real = next(packages.glob(f"nvidia/cu*/lib/lib{name}.so.*"))
        libraries.append(_library(source, real.name, _exported(real), packages, folder))
    stubs = dict.fromkeys(nvml, "")
    libraries.append(_library("nvml.c", "libnvidia-ml.so.1", stubs, packages, folder, _NVML_NOT_SUPPORTED))
    for library in libraries:  # under the name that a linker looks for: Triton and flashinfer link what they compile
        link = folder / (library.name.split(".so")[0] + ".so")
        if not link.exists():
            link.symlink_to(library.name)
    return libraries


def _library(source: str, soname: str, names: dict[str, str], packages: Path, folder: Path, answer: int = 0) -> Path:
    """Compile one library of ``names``, each with its version or ""; a stub returns ``answer``."""
    written, stubs, script = folder / f"{source}.o", folder / f"{source}.stubs.c", folder / f"{source}.map"
    includes = [f"-I{path}" for path in packages.glob("nvidia/cu*/include")]
    _gcc("-c", HERE / source, *includes, "-o", written)
    defined = subprocess.run(["nm", "--defined-only", written], check=True, capture_output=True, text=True).stdout
    missing = sorted(set(names) - {line.split()[-1] for line in defined.splitlines()})
    stubs.write_text("".join(f"int {name}() {{ return {answer}; }}\n" for name in missing))
    versions = sorted({version for version in names.values() if version})
    listed = {v: "; ".join(name for name, version in names.items() if version == v) for v in versions}
    script.write_text("".join(f"{v} {{ global: {listed[v]}; }};\n" for v in versions) or "{ global: *; };\n")
    library = folder / soname
    linked = ["-L", folder, "-lpaper", f"-Wl,-rpath,{folder},-soname,{soname},--version-script,{script}"]
    _gcc("-shared", written, stubs, *linked, "-o", library)
    return library


def _gcc(*arguments: str | Path) -> None:
    # -fno-builtin, -w: stubs are declared as nothing that gcc knows, and the functions leave most parameters unused
    subprocess.run(["gcc", "-O1", "-fPIC", "-fno-builtin", "-w", *arguments], check=True)


def _exported(library: Path) -> dict[str, str]:
    """The functions that a library exports, and the version of each."""
    lines = subprocess.run(["readelf", "--dyn-syms", "-W", library], check=True, capture_output=True, text=True).stdout
    names: dict[str, str] = {}
    for fields in (line.split() for line in lines.splitlines()):
        if len(fields) >= 8 and fields[3] == "FUNC" and fields[6] != "UND" and not fields[7].startswith("lib"):
            name, _, version = fields[7].partition("@")
            names[name] = version.lstrip("@")
    return names
