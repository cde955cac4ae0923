// What every kernel file includes first: word-sized names, and one macro per thing that nvcc/NVRTC and the host
// emulation spell differently. No CUDA header is needed, so NVRTC builds these files without a toolkit on the machine.
//
// A kernel takes ONE structure by value (KVPLAN_KERNEL). The host passes a pointer to the same structure to
// cuLaunchKernel or to the emulation, and the two cannot disagree on the order of the arguments.
#pragma once

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

#if defined(__CUDACC__)

#define KVPLAN_INLINE static __device__ __forceinline__
#define KVPLAN_METHOD __device__ __forceinline__
#define KVPLAN_DYNAMIC_SHARED(name) extern __shared__ __align__(128) u8 name[]
// A kernel may be launched while the one before it in its stream still runs (EngineConfig.enable_pdl). So it begins by
// waiting until that one is done and what it wrote can be seen, and reads and writes no global memory before. Then it lets
// its own successor begin, which waits in the same way. Where a launch does not ask for this, neither does anything.
#define KVPLAN_BOUND_KERNEL(name, Params, ...)                                                                \
    static __device__ __forceinline__ void name##_body(const Params& params);                                 \
    extern "C" __global__ void __launch_bounds__(__VA_ARGS__) name(const __grid_constant__ Params params) {   \
        wait_for_predecessor();                                                                               \
        name##_body(params);                                                                                  \
    }                                                                                                         \
    static __device__ __forceinline__ void name##_body(const Params& params)
#define KVPLAN_KERNEL(name, Params, max_threads) KVPLAN_BOUND_KERNEL(name, Params, max_threads)
// The same for one block at a time on a multiprocessor: the only one, or one whose warp groups divide its registers.
#define KVPLAN_LONE_KERNEL(name, Params, max_threads) KVPLAN_BOUND_KERNEL(name, Params, max_threads, 1)
#define KVPLAN_UNROLL _Pragma("unroll")
#define KVPLAN_PRAGMA(text) _Pragma(#text)
#define KVPLAN_UNROLL_BY(times) KVPLAN_PRAGMA(unroll times)
#if defined(__CUDA_ARCH__)
#define KVPLAN_ARCH __CUDA_ARCH__
#else
#define KVPLAN_ARCH 0
#endif

static __device__ __forceinline__ void wait_for_predecessor() {
#if KVPLAN_ARCH >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

#else

#include "../cuda_host/cuda_words.hpp"

#define KVPLAN_HOST 1
#define KVPLAN_ARCH 900
#define KVPLAN_INLINE static inline
#define KVPLAN_METHOD inline
#define KVPLAN_DYNAMIC_SHARED(name) u8* name = kvplan_host::dynamic_shared()
#define KVPLAN_KERNEL(name, Params, max_threads)                                                              \
    static void name##_body(const Params& params);                                                            \
    static void name##_entry(const void* params) { name##_body(*static_cast<const Params*>(params)); }        \
    extern "C" int name(const unsigned* grid, const unsigned* block, unsigned long shared_bytes,              \
                        const void* params, int order, char* error) {                                         \
        static_assert((max_threads) % 32 == 0, "blocks are whole warps");                                     \
        return kvplan_host::launch(name##_entry, grid, block, shared_bytes, params, order, error);            \
    }                                                                                                         \
    extern "C" unsigned long name##_params_bytes() { return sizeof(Params); }                                 \
    static void name##_body(const Params& params)
#define KVPLAN_LONE_KERNEL KVPLAN_KERNEL
#define KVPLAN_UNROLL
#define KVPLAN_UNROLL_BY(times)

#endif

constexpr int WARP_LANES = 32;
constexpr u32 FULL_WARP = 0xFFFFFFFFu;
constexpr float LOG2_E = 1.4426950408889634f;

KVPLAN_INLINE float minus_infinity() {
    union {
        u32 bits;
        float value;
    } cast = {0xFF800000u};
    return cast.value;
}

template <typename T>
KVPLAN_INLINE constexpr T ceil_divide(T a, T b) {
    return (a + b - 1) / b;
}

template <typename T>
KVPLAN_INLINE constexpr T smaller(T a, T b) {
    return a < b ? a : b;
}

template <typename T>
KVPLAN_INLINE constexpr T larger(T a, T b) {
    return a > b ? a : b;
}
