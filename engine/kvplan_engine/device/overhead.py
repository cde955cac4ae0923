"""Memory that a process takes of a device besides its tensors, reserved before anything is measured.

Allocator slack, BLAS scratch, thread stacks; on a GPU also the context and the libraries' code. The profile step checks
it and raises it if it was too small.
"""

from __future__ import annotations

CPU_OVERHEAD_BYTES = 128 * 1024**2
CUDA_OVERHEAD_BYTES = 640 * 1024**2
