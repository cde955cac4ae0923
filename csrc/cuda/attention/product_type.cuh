// What tensor cores multiply where a cache of fp8 is attended to, and the way there.
#pragma once

#include "attention.cuh"
#include "../tensor_core.cuh"

// What products take. For a cache of fp8 it is float16 whatever the queries are, where one instruction converts two of its
// values (sm_89 and newer): e4m3 is exact in it, and so is a bfloat16 query from 2^-14 to 65504.
constexpr bool TAKES_HALVES = sizeof(Cache) == 1 && KVPLAN_ARCH >= 890;
template <bool>
struct OfProducts {
    using Type = Scalar;
};
template <>
struct OfProducts<true> {
    using Type = float16;
};
using Product = OfProducts<TAKES_HALVES>::Type;

// The largest float16 for what lies beyond it. A NaN stays one, which fminf and fmaxf would not let through.
KVPLAN_INLINE float within_halves(float x) { return x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x; }

// Two elements of a query as a pair of Product; those beyond its range become the largest there is.
KVPLAN_INLINE u32 pair_from_query(u32 two) {
    if constexpr (!TAKES_HALVES) return two;
    const float low = to_float(Scalar{u16(two)}), high = to_float(Scalar{u16(two >> 16)});
    return Pair<Product>::pack(within_halves(low), within_halves(high));
}
