// Products of warp groups (sm_90a): wgmma and what belongs to it, each instruction in a function of a few lines with a host
// twin.
//
// A warp group is 128 threads, four warps from a multiple of four on. Thread 32 w + 4 g + t of it has of the sums of
// [64, N] what it has of N / 8 tiles of mma.m16n8k16 (tensor_core.cuh) for the rows from 16 w on: sums[4 n + c], and
// of A [64, 16], where that comes from registers, the same four.
//
// Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions": fragments, descriptors, fences.
#pragma once

#include "hopper.cuh"

// The matrix descriptor of a swizzled panel. leading_bytes: from 64 columns of a column-major matrix to the next 64,
// else unused; from eight rows of 128 bytes to the next eight are always PANEL_ALIGNMENT bytes.
KVPLAN_INLINE u64 panel_descriptor(u32 address, u32 leading_bytes) {
    constexpr u64 swizzled_128 = 1;
    return u64((address & 0x3FFFF) >> 4) | u64(leading_bytes >> 4) << 16 | u64(PANEL_ALIGNMENT >> 4) << 32 |
           swizzled_128 << 62;
}

// The descriptor of what lies `bytes` further. Only its low half changes; told so in C++, the compiler adds 64 bits.
KVPLAN_INLINE u64 moved(u64 descriptor, int bytes) {
#if defined(KVPLAN_HOST)
    return descriptor + u64(bytes >> 4);
#else
    u64 result;
    asm("{ .reg .u32 low, high; mov.b64 {low, high}, %1; add.u32 low, low, %2; mov.b64 %0, {low, high}; }"
        : "=l"(result)
        : "l"(descriptor), "r"(bytes >> 4));
    return result;
#endif
}

#if defined(KVPLAN_HOST)

KVPLAN_INLINE void fence_registers() { kvplan_host::fence_registers(); }
KVPLAN_INLINE void commit_products() { kvplan_host::commit_products(); }

template <int GROUPS_LEFT>
KVPLAN_INLINE void wait_products() {
    kvplan_host::wait_products(GROUPS_LEFT);
}

template <int COUNT>
KVPLAN_INLINE void settle(float (&)[COUNT]) {}

template <typename T>
float half_to_float(u16 bits) {
    return to_float(T{bits});
}

template <typename T, int COLUMNS, bool ADDS>
KVPLAN_INLINE void multiply_shared(float (&sums)[COLUMNS / 2], u64 a, u64 b) {
    kvplan_host::multiply({nullptr, a, b, false, COLUMNS, ADDS, sums, half_to_float<T>});
}

template <typename T, int COLUMNS>
KVPLAN_INLINE void multiply_registers(float (&sums)[COLUMNS / 2], const u32 (&a)[4], u64 b) {
    kvplan_host::multiply({a, 0, b, true, COLUMNS, true, sums, half_to_float<T>});
}

#else

// Before the first product, and after registers of one have been read or written.
KVPLAN_INLINE void fence_registers() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

KVPLAN_INLINE void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int GROUPS_LEFT>
KVPLAN_INLINE void wait_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(GROUPS_LEFT) : "memory");
}

// Keeps the compiler from moving what reads or writes these registers across this line, as a wait alone does not.
template <int COUNT>
KVPLAN_INLINE void settle(float (&sums)[COUNT]) {
    KVPLAN_UNROLL
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

#define KVPLAN_8_SUMS(i)                                                                                           \
    "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3]), "+f"(sums[i + 4]), "+f"(sums[i + 5]), \
        "+f"(sums[i + 6]), "+f"(sums[i + 7])
#define KVPLAN_32_SUMS(i) KVPLAN_8_SUMS(i), KVPLAN_8_SUMS(i + 8), KVPLAN_8_SUMS(i + 16), KVPLAN_8_SUMS(i + 24)

#define KVPLAN_32_NAMES   \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define KVPLAN_64_NAMES   \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// Both kinds of product for one storage type and number of columns. a, b: as multiply_shared and multiply_registers say.
template <typename T, int COLUMNS>
struct GroupMultiply;

#define KVPLAN_GROUP_MULTIPLY(Type, ptx_type, columns, NAMES, SUMS, a0, a1, a2, a3, a4)                              \
    template <>                                                                                                      \
    struct GroupMultiply<Type, columns> {                                                                            \
        template <bool ADDS>                                                                                         \
        KVPLAN_INLINE void shared(float (&sums)[columns / 2], u64 a, u64 b) {                                        \
            asm volatile("{ .reg .pred adds; setp.ne.b32 adds, %" a2 ", 0; "                                         \
                         "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." ptx_type "." ptx_type " {" NAMES    \
                         "}, %" a0 ", %" a1 ", adds, 1, 1, 0, 0; }"                                                  \
                         : SUMS                                                                                      \
                         : "l"(a), "l"(b), "n"(int(ADDS)));                                                          \
        }                                                                                                            \
        KVPLAN_INLINE void registers(float (&sums)[columns / 2], const u32 (&a)[4], u64 b) {                         \
            asm volatile("{ .reg .pred adds; setp.ne.b32 adds, 1, 0; "                                               \
                         "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." ptx_type "." ptx_type " {" NAMES    \
                         "}, {%" a0 ", %" a1 ", %" a2 ", %" a3 "}, %" a4 ", adds, 1, 1, 1; }"                        \
                         : SUMS                                                                                      \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                      \
        }                                                                                                            \
    }
#define KVPLAN_64_COLUMNS KVPLAN_32_SUMS(0)
#define KVPLAN_128_COLUMNS KVPLAN_32_SUMS(0), KVPLAN_32_SUMS(32)
KVPLAN_GROUP_MULTIPLY(float16, "f16", 64, KVPLAN_32_NAMES, KVPLAN_64_COLUMNS, "32", "33", "34", "35", "36");
KVPLAN_GROUP_MULTIPLY(bfloat16, "bf16", 64, KVPLAN_32_NAMES, KVPLAN_64_COLUMNS, "32", "33", "34", "35", "36");
KVPLAN_GROUP_MULTIPLY(float16, "f16", 128, KVPLAN_64_NAMES, KVPLAN_128_COLUMNS, "64", "65", "66", "67", "68");
KVPLAN_GROUP_MULTIPLY(bfloat16, "bf16", 128, KVPLAN_64_NAMES, KVPLAN_128_COLUMNS, "64", "65", "66", "67", "68");
#undef KVPLAN_GROUP_MULTIPLY
#undef KVPLAN_64_COLUMNS
#undef KVPLAN_128_COLUMNS
#undef KVPLAN_32_NAMES
#undef KVPLAN_64_NAMES
#undef KVPLAN_32_SUMS
#undef KVPLAN_8_SUMS

// Begins sums (+)= A x B with A [64, 16] and B [16, COLUMNS] in shared memory, each row of A and each column of B
// 16 neighbours.
template <typename T, int COLUMNS, bool ADDS>
KVPLAN_INLINE void multiply_shared(float (&sums)[COLUMNS / 2], u64 a, u64 b) {
    GroupMultiply<T, COLUMNS>::template shared<ADDS>(sums, a, b);
}

// Begins sums += A x B with A in registers and B in shared memory, each row of B neighbours ("MN-major").
template <typename T, int COLUMNS>
KVPLAN_INLINE void multiply_registers(float (&sums)[COLUMNS / 2], const u32 (&a)[4], u64 b) {
    GroupMultiply<T, COLUMNS>::registers(sums, a, b);
}

#endif
