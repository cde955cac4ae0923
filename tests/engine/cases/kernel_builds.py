"""Which builds of the CPU kernels tests run: one of each shape that their sources take on this machine."""

from kvplan_engine.kernels.build import GENERIC, NATIVE, WIDE, cpu_features

BUILDS = [NATIVE, GENERIC] if " avx512f " in cpu_features() else [NATIVE, WIDE, GENERIC]
"""With AVX-512 the native build is the wide one: other flags are for warnings alone."""
OTHER_BUILDS = [build for build in BUILDS if build is not NATIVE]
