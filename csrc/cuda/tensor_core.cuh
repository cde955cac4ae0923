// The PTX of the tensor-core kernels (sm_80 and newer), each instruction in a function of a few lines with a host twin.
//
// Fragment layout of mma.m16n8k16, from the PTX ISA: lane = 4 g + t.
//   A (16 x 16): a0 = row g,   columns 2t 2t+1     a1 = row g+8, the same columns
//                a2 = row g,   columns 2t+8 2t+9   a3 = row g+8, the same columns
//   B (16 x 8):  b0 = rows 2t 2t+1 of column g     b1 = rows 2t+8 2t+9 of column g
//   C (16 x 8):  c0 c1 = row g, columns 2t 2t+1    c2 c3 = row g+8, the same columns
// Of m16n8k32, over 8 bits, the same registers have four elements where those have two: of A a0 is columns 4t to 4t+3, a2
// those from 4t+16 on. So ldmatrix, which moves rows of 16 bytes, makes the fragments of both.
#pragma once

#include "types.cuh"

// Two 16-bit values in one register, the first in the low half.
template <typename T>
struct Pair;

// Byte i of the result is the byte of x that nibble i of `selector` names, lowest first; 4 names a zero.
KVPLAN_INLINE u32 pick_bytes(u32 x, u32 selector) {
#if defined(KVPLAN_HOST)
    u32 result = 0;
    for (int i = 0; i < 4; ++i) {
        const u32 nibble = selector >> 4 * i & 7u;
        result |= (nibble < 4 ? x >> 8 * nibble & 0xFFu : 0u) << 8 * i;
    }
    return result;
#else
    return __byte_perm(x, 0, selector);
#endif
}

// Bytes `first` (0 or 2) and the one behind it as the high bytes of two halves: a sign is where it belongs.
KVPLAN_INLINE u32 high_bytes(u32 four, int first) { return pick_bytes(four, first == 0 ? 0x1404u : 0x3424u); }

template <>
struct Pair<float16> {
    KVPLAN_INLINE u32 pack(float low, float high) {
#if defined(KVPLAN_HOST)
        return u32(from_float<float16>(low).bits) | u32(from_float<float16>(high).bits) << 16;
#else
        u32 result;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
        return result;
#endif
    }

    // Two e4m3 values of four, from byte `first` on: an instruction from compute capability 8.9 on. Before, exponent bias 7
    // becomes 15 by a multiplication with 2^8.
    KVPLAN_INLINE u32 from_float8(u32 four, int first) {
        u32 result;
#if KVPLAN_ARCH >= 890 && !defined(KVPLAN_HOST)
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(result) : "h"(u16(four >> 8 * first)));
#else
        const u32 high = high_bytes(four, first), raw = (high & 0x80008000u) | (high >> 1 & 0x3F803F80u);
#if defined(KVPLAN_HOST)
        result = pack(to_float(float16{u16(raw)}) * 256.0f, to_float(float16{u16(raw >> 16)}) * 256.0f);
#else
        asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(result) : "r"(raw), "r"(0x5C005C00u));
#endif
#endif
        return result;
    }
};

template <>
struct Pair<bfloat16> {
    KVPLAN_INLINE u32 pack(float low, float high) {
#if defined(KVPLAN_HOST)
        return u32(from_float<bfloat16>(low).bits) | u32(from_float<bfloat16>(high).bits) << 16;
#else
        u32 result;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
        return result;
#endif
    }

    // Two e4m3 values of four, from byte `first` on: exponent bias 7 becomes 127 by a multiplication with 2^120.
    KVPLAN_INLINE u32 from_float8(u32 four, int first) {
        const u32 high = high_bytes(four, first), raw = (high & 0x80008000u) | (high >> 4 & 0x07F007F0u);
#if defined(KVPLAN_HOST)
        const float scale = float_from_bits(0x7B800000u);
        return pack(to_float(bfloat16{u16(raw)}) * scale, to_float(bfloat16{u16(raw >> 16)}) * scale);
#else
        u32 result;  // multiply by 2^120 and add -0, which changes nothing
        asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(raw), "r"(0x7B807B80u), "r"(0x80008000u));
        return result;
#endif
    }
};

// The low (high) halves of two registers side by side.
KVPLAN_INLINE u32 low_halves(u32 first, u32 second) {
#if defined(KVPLAN_HOST)
    return (first & 0xFFFFu) | second << 16;
#else
    return __byte_perm(first, second, 0x5410);
#endif
}

KVPLAN_INLINE u32 high_halves(u32 first, u32 second) {
#if defined(KVPLAN_HOST)
    return first >> 16 | (second & 0xFFFF0000u);
#else
    return __byte_perm(first, second, 0x7632);
#endif
}

#if defined(KVPLAN_HOST)

namespace kvplan_host {

struct MmaSlot {
    u32 a[4], b[2];
    float c[4];
};

template <typename T>
float half_of(u32 pair, int which) {
    return to_float(T{u16(which ? pair >> 16 : pair)});
}

// Gathers the warp's fragments into matrices, multiplies, and hands the fragments of C back.
template <typename T>
void exchange_mma(Slots& slots) {
    float a[16][16], b[16][8], c[16][8];
    for (int lane = 0; lane < WARP_SIZE; ++lane) {
        const MmaSlot* own = slot<MmaSlot>(slots, lane);
        const int g = lane / 4, t = lane % 4;
        for (int e = 0; e < 8; ++e) a[g + e / 2 % 2 * 8][2 * t + e % 2 + e / 4 * 8] = half_of<T>(own->a[e / 2], e % 2);
        for (int e = 0; e < 4; ++e) b[2 * t + e % 2 + e / 2 * 8][g] = half_of<T>(own->b[e / 2], e % 2);
        for (int e = 0; e < 4; ++e) c[g + e / 2 * 8][2 * t + e % 2] = own->c[e];
    }
    for (int row = 0; row < 16; ++row)
        for (int k = 0; k < 16; ++k)
            for (int column = 0; column < 8; ++column) c[row][column] += a[row][k] * b[k][column];
    for (int lane = 0; lane < WARP_SIZE; ++lane)
        for (int e = 0; e < 4; ++e) slot<MmaSlot>(slots, lane)->c[e] = c[lane / 4 + e / 2 * 8][2 * (lane % 4) + e % 2];
}

inline float float8_of(u32 word, int byte) { return to_float(float8{u8(word >> 8 * byte)}); }

// The same of m16n8k32, over float8.
inline void exchange_mma_float8(Slots& slots) {
    float a[16][32], b[32][8];
    for (int lane = 0; lane < WARP_SIZE; ++lane) {
        const MmaSlot* own = slot<MmaSlot>(slots, lane);
        const int g = lane / 4, t = lane % 4;
        for (int e = 0; e < 16; ++e) a[g + e / 4 % 2 * 8][4 * t + e % 4 + e / 8 * 16] = float8_of(own->a[e / 4], e % 4);
        for (int e = 0; e < 8; ++e) b[4 * t + e % 4 + e / 4 * 16][g] = float8_of(own->b[e / 4], e % 4);
    }
    for (int lane = 0; lane < WARP_SIZE; ++lane)
        for (int e = 0; e < 4; ++e)
            for (int k = 0; k < 32; ++k)
                slot<MmaSlot>(slots, lane)->c[e] += a[lane / 4 + e / 2 * 8][k] * b[k][2 * (lane % 4) + e % 2];
}

// Transposes an 8 x 8 matrix of 16-bit values, two columns of row g in each lane.
inline void exchange_transpose(Slots& slots) {
    u16 matrix[8][8];
    for (int lane = 0; lane < WARP_SIZE; ++lane)
        memcpy(&matrix[lane / 4][lane % 4 * 2], slots.bytes[lane], 4);
    for (int lane = 0; lane < WARP_SIZE; ++lane) {
        const u32 low = matrix[lane % 4 * 2][lane / 4], high = matrix[lane % 4 * 2 + 1][lane / 4];
        *slot<u32>(slots, lane) = low | high << 16;
    }
}

struct LoadMatrixSlot {
    const u8* row;
    u32 result[4];
};

template <bool TRANSPOSED>
void exchange_load_matrix(Slots& slots) {
    for (int lane = 0; lane < WARP_SIZE; ++lane) {
        const int g = lane / 4, t = lane % 4;
        for (int m = 0; m < 4; ++m) {
            u16 two[2];
            for (int e = 0; e < 2; ++e) {
                const int row = TRANSPOSED ? 2 * t + e : g, column = TRANSPOSED ? g : 2 * t + e;
                memcpy(&two[e], slot<LoadMatrixSlot>(slots, 8 * m + row)->row + 2 * column, 2);
            }
            slot<LoadMatrixSlot>(slots, lane)->result[m] = u32(two[0]) | u32(two[1]) << 16;
        }
    }
}

template <bool TRANSPOSED>
void load_matrix(u32 (&result)[4], const u8* row) {
    if (!is_aligned(row, 16)) fail("ldmatrix of a row that is not aligned to 16 bytes");
    LoadMatrixSlot exchange{row, {}};
    warp_meet(&exchange, sizeof(exchange), exchange_load_matrix<TRANSPOSED>);
    for (int m = 0; m < 4; ++m) result[m] = exchange.result[m];
}

}  // namespace kvplan_host

template <typename T>
KVPLAN_INLINE void multiply_accumulate(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    kvplan_host::MmaSlot exchange;
    for (int e = 0; e < 4; ++e) exchange.a[e] = a[e], exchange.c[e] = c[e];
    for (int e = 0; e < 2; ++e) exchange.b[e] = b[e];
    kvplan_host::warp_meet(&exchange, sizeof(exchange), kvplan_host::exchange_mma<T>);
    for (int e = 0; e < 4; ++e) c[e] = exchange.c[e];
}

KVPLAN_INLINE void multiply_accumulate_float8(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    kvplan_host::MmaSlot exchange;
    for (int e = 0; e < 4; ++e) exchange.a[e] = a[e], exchange.c[e] = c[e];
    for (int e = 0; e < 2; ++e) exchange.b[e] = b[e];
    kvplan_host::warp_meet(&exchange, sizeof(exchange), kvplan_host::exchange_mma_float8);
    for (int e = 0; e < 4; ++e) c[e] = exchange.c[e];
}

KVPLAN_INLINE u32 transpose_8x8(u32 pair) {
    kvplan_host::warp_meet(&pair, sizeof(pair), kvplan_host::exchange_transpose);
    return pair;
}

KVPLAN_INLINE void load_matrix_x4(u32 (&result)[4], const u8* row) { kvplan_host::load_matrix<false>(result, row); }

KVPLAN_INLINE void load_matrix_x4_transposed(u32 (&result)[4], const u8* row) {
    kvplan_host::load_matrix<true>(result, row);
}

KVPLAN_INLINE void copy_async_16(void* shared, const void* global, bool wanted) {
    kvplan_host::begin_copy(shared, global, wanted ? 16 : 0);
}

KVPLAN_INLINE void commit_copies() { kvplan_host::commit_copies(); }

template <int GROUPS_LEFT>
KVPLAN_INLINE void wait_copies() {
    kvplan_host::wait_copies(GROUPS_LEFT);
}

#elif KVPLAN_ARCH >= 800 || KVPLAN_ARCH == 0

template <typename T>
struct Multiply;

#define KVPLAN_MULTIPLY(Type, ptx_type)                                                                           \
    template <>                                                                                                   \
    struct Multiply<Type> {                                                                                       \
        KVPLAN_INLINE void run(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {                             \
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." ptx_type "." ptx_type                           \
                         ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                   \
                         : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                         \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                     \
        }                                                                                                         \
    }
KVPLAN_MULTIPLY(float16, "f16");
KVPLAN_MULTIPLY(bfloat16, "bf16");
#undef KVPLAN_MULTIPLY

// c += a x b over a whole warp.
template <typename T>
KVPLAN_INLINE void multiply_accumulate(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    Multiply<T>::run(c, a, b);
}

#if KVPLAN_ARCH >= 890 || KVPLAN_ARCH == 0

// The same of 32 values of float8 (e4m3) of a row of A, and of a column of B.
KVPLAN_INLINE void multiply_accumulate_float8(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#endif

// Lane (g, t) gives row g, columns 2t 2t+1 of an 8 x 8 matrix and gets the same place of the transposed one.
KVPLAN_INLINE u32 transpose_8x8(u32 pair) {
    u32 result;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(pair));
    return result;
}

KVPLAN_INLINE u32 shared_address(const void* pointer) { return u32(__cvta_generic_to_shared(pointer)); }

// Four 8 x 8 matrices; lane 8 m + r gives the address of row r of matrix m, and gets (row g, columns 2t 2t+1) of each.
KVPLAN_INLINE void load_matrix_x4(u32 (&result)[4], const u8* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(result[0]), "=r"(result[1]), "=r"(result[2]), "=r"(result[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// The same, each matrix transposed: (rows 2t 2t+1, column g).
KVPLAN_INLINE void load_matrix_x4_transposed(u32 (&result)[4], const u8* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(result[0]), "=r"(result[1]), "=r"(result[2]), "=r"(result[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// 16 bytes from global to shared memory without a register; zeros when not wanted (the address is then not read).
KVPLAN_INLINE void copy_async_16(void* shared, const void* global, bool wanted) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
                 "r"(wanted ? 16 : 0)
                 : "memory");
}

KVPLAN_INLINE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int GROUPS_LEFT>
KVPLAN_INLINE void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(GROUPS_LEFT) : "memory");
}

#endif
