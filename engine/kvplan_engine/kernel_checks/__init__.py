"""Kernels checked on a device before anything relies on them: each against plain torch in float32.

A family of kernels that fails is named and replaced by a twin; one that is only worth it where it is fast is timed
against what it would replace. This happens once for each device, driver, torch, compiler and source; an engine's first
start does it before it divides the memory, and so does ``kvplan doctor``.

use                 which kernels a model could use; what stands in for each family
case                a check: results of a kernel and of torch; two ways, and which one is faster
attention_cases, operation_cases, product_cases, state_cases   the checks
cpu                 the same of a CPU's kernels
run                 runs them, puts twins in place
verdicts            what is said of each, and kept on disk
"""
