// The storage types and their way to float and back. Arithmetic is float32 everywhere.
//
// Written in bit operations where those are as fast as the instruction, so that every compute capability and the host
// run the same source; PTX only where it is a clear win.
#pragma once

#include "platform.cuh"

using float32 = float;
struct float16 {
    u16 bits;
};
struct bfloat16 {
    u16 bits;
};
struct float8 {  // e4m3, finite only: 448 is the largest value, 0x7F is not a number
    u8 bits;
};
struct int8 {  // of a cache with a scale for each token and KV head: -127 to 127
    signed char code;
};

KVPLAN_INLINE float float_from_bits(u32 bits) {
    union {
        u32 bits;
        float value;
    } cast = {bits};
    return cast.value;
}

KVPLAN_INLINE u32 bits_from_float(float value) {
    union {
        float value;
        u32 bits;
    } cast = {value};
    return cast.bits;
}

// ---- to float ----------------------------------------------------------------------------------------------------

KVPLAN_INLINE float to_float(float value) { return value; }

KVPLAN_INLINE float to_float(bfloat16 value) { return float_from_bits(u32(value.bits) << 16); }

KVPLAN_INLINE float to_float(float16 value) {
#if defined(KVPLAN_HOST)
    const u32 magnitude = value.bits & 0x7FFFu, sign = u32(value.bits & 0x8000u) << 16;
    if (magnitude >= 0x7C00u) return float_from_bits(sign | 0x7F800000u | (magnitude & 0x3FFu) << 13);
    return float_from_bits(sign | bits_from_float(float_from_bits(magnitude << 13) * float_from_bits(0x77800000u)));
#else
    float result;
    asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
    return result;
#endif
}

// Exponent bias 7 becomes 127 by a multiplication with 2^120, which also makes subnormals right.
KVPLAN_INLINE float to_float(float8 value) {
    const u32 sign = u32(value.bits & 0x80u) << 24;
    if ((value.bits & 0x7Fu) == 0x7Fu) return float_from_bits(sign | 0x7FC00000u);
    return float_from_bits(sign | u32(value.bits & 0x7Fu) << 20) * float_from_bits(0x7B800000u);
}

KVPLAN_INLINE float to_float(int8 value) { return float(value.code); }

// ---- from float: round to nearest, ties to even ------------------------------------------------------------------

template <typename T>
struct FromFloat;

template <>
struct FromFloat<float> {
    KVPLAN_INLINE float convert(float value) { return value; }
};

template <>
struct FromFloat<bfloat16> {
    KVPLAN_INLINE bfloat16 convert(float value) {
        const u32 bits = bits_from_float(value);
        if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return {u16(bits >> 16 | 0x40u)};
        return {u16((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16)};
    }
};

template <>
struct FromFloat<float16> {
    KVPLAN_INLINE float16 convert(float value) {
#if defined(KVPLAN_HOST)
        const u32 bits = bits_from_float(value), sign = bits >> 16 & 0x8000u;
        const u32 magnitude = bits & 0x7FFFFFFFu;
        if (magnitude > 0x7F800000u) return {u16(sign | 0x7E00u)};
        if (magnitude >= 0x477FF000u) return {u16(sign | 0x7C00u)};
        if (magnitude < 0x38800000u) {  // subnormal: adding 2^-1 * 2^0 leaves the steps of 2^-24 in the last bits
            const float shifted = float_from_bits(magnitude) + 0.5f;
            return {u16(sign | (bits_from_float(shifted) - 0x3F000000u))};
        }
        return {u16(sign | (magnitude - 0x38000000u + 0xFFFu + (magnitude >> 13 & 1u)) >> 13)};
#else
        float16 result;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
        return result;
#endif
    }
};

template <>
struct FromFloat<float8> {
    KVPLAN_INLINE float8 convert(float value) {
        const u32 bits = bits_from_float(value), sign = bits >> 24 & 0x80u;
        const u32 magnitude = bits & 0x7FFFFFFFu;
        if (magnitude > 0x7F800000u) return {u8(sign | 0x7Fu)};
        if (magnitude >= 0x43E00000u) return {u8(sign | 0x7Eu)};  // saturates at 448
        if (magnitude < 0x3C800000u) {  // below 2^-6: steps of 2^-9, left in the last bits by adding 2^14
            const float shifted = float_from_bits(magnitude) + 16384.0f;
            return {u8(sign | (bits_from_float(shifted) & 0xFu))};
        }
        return {u8(sign | (magnitude - 0x3C000000u + 0x7FFFFu + (magnitude >> 20 & 1u)) >> 20)};
    }
};

// Of a magnitude of at most 127: added to 1.5 * 2^23, the last bit is worth 1.
template <>
struct FromFloat<int8> {
    KVPLAN_INLINE int8 convert(float value) {
        return {static_cast<signed char>(int(bits_from_float(value + 12582912.0f) - 0x4B400000u))};
    }
};

// Whether a cache of T keeps a scale for each token and KV head behind the integers of a page.
template <typename T>
constexpr bool IS_SCALED = false;
template <>
constexpr bool IS_SCALED<int8> = true;

template <typename T>
KVPLAN_INLINE T from_float(float value) {
    return FromFloat<T>::convert(value);
}

// ---- 16 bytes at a time ------------------------------------------------------------------------------------------

KVPLAN_INLINE bool is_aligned(const void* address, u64 bytes) { return reinterpret_cast<u64>(address) % bytes == 0; }

// A whole vector load, and in the emulation a check that the address allows it.
template <typename Vector>
KVPLAN_INLINE Vector load_vector(const void* address) {
#if defined(KVPLAN_HOST)
    if (!is_aligned(address, sizeof(Vector))) kvplan_host::fail("a vector load from an unaligned address");
#endif
    return *static_cast<const Vector*>(address);
}

// Reads what another block wrote: past the first-level cache, which no one keeps coherent.
template <typename T>
KVPLAN_INLINE T load_from_l2(const T* address) {
#if defined(KVPLAN_HOST)
    return load_vector<T>(address);
#else
    return __ldcg(address);
#endif
}

template <typename Vector>
KVPLAN_INLINE void store_vector(void* address, Vector value) {
#if defined(KVPLAN_HOST)
    if (!is_aligned(address, sizeof(Vector))) kvplan_host::fail("a vector store to an unaligned address");
#endif
    *static_cast<Vector*>(address) = value;
}

// 16 bytes as elements.
template <typename T>
struct Pack {
    static constexpr int SIZE = 16 / sizeof(T);
    union {
        uint4 vector;
        T elements[SIZE];
    };
};

template <typename T>
KVPLAN_INLINE Pack<T> load_pack(const T* address) {
    Pack<T> pack;
    pack.vector = load_vector<uint4>(address);
    return pack;
}

// To global memory. In PTX, because the compiler may take a pack that was put together element by element apart again
// and store it two bytes at a time.
template <typename T>
KVPLAN_INLINE void store_pack(T* address, const Pack<T>& pack) {
#if defined(KVPLAN_HOST)
    store_vector<uint4>(address, pack.vector);
#else
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(address)),
                 "r"(pack.vector.x), "r"(pack.vector.y), "r"(pack.vector.z), "r"(pack.vector.w)
                 : "memory");
#endif
}

// ---- special functions -------------------------------------------------------------------------------------------

KVPLAN_INLINE float fast_exp2(float x) {
#if defined(KVPLAN_HOST)
    return exp2f(x);
#else
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
#endif
}

// 1 / x; of 0 infinity, of infinity 0. Without the call that an exact division is, and the registers that a call costs.
KVPLAN_INLINE float fast_reciprocal(float x) {
#if defined(KVPLAN_HOST)
    return 1.0f / x;
#else
    float result;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
#endif
}

KVPLAN_INLINE float maximum(float a, float b) { return a > b ? a : b; }
