// What skinny_mma.cu needs beyond tensor_core.cuh, each with a host twin: loads of weights, which may begin before the kernel
// before this one is done (EngineConfig.enable_pdl), as no kernel writes weights.
#pragma once

#include "../types.cuh"

#if defined(KVPLAN_HOST)

// As KVPLAN_KERNEL, but that the body itself calls wait_for_predecessor, before it touches what other kernels write.
#define KVPLAN_EARLY_KERNEL KVPLAN_KERNEL

KVPLAN_INLINE void wait_for_predecessor() {}

// Asks for bytes of a weight to be brought to the second-level cache; both are multiples of 16.
KVPLAN_INLINE void prefetch_weight(const void* address, u32 bytes) {
    if (!is_aligned(address, 16) || bytes % 16 != 0) kvplan_host::fail("a prefetch of bytes that are no whole vectors");
}

#else

#define KVPLAN_EARLY_KERNEL(name, Params, ...)                                                                \
    static __device__ __forceinline__ void name##_body(const Params& params);                                 \
    extern "C" __global__ void __launch_bounds__(__VA_ARGS__) name(const __grid_constant__ Params params) {   \
        name##_body(params);                                                                                  \
    }                                                                                                         \
    static __device__ __forceinline__ void name##_body(const Params& params)

KVPLAN_INLINE void prefetch_weight(const void* address, u32 bytes) {
#if KVPLAN_ARCH >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(address)), "r"(bytes)
                 : "memory");
#endif
}

#endif
