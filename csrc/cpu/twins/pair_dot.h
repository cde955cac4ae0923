// AVX-512's vdpbf16ps in plain loops, by its definition in Intel's manual: only tests compile it (KVPLAN_TWINS).
#pragma once

#include "../simd.h"

namespace kvplan {

// What the unit does with a subnormal number, read or computed: a zero with its sign.
KVPLAN_INLINE float without_subnormals(float value) {
  return __builtin_fabsf(value) < 0x1p-126f ? __builtin_copysignf(0.0f, value) : value;
}

KVPLAN_INLINE float unit_float(BFloat16 value) {
  return without_subnormals(to_float(value));
}

// sum + a * b, rounded once, to nearest.
KVPLAN_INLINE float unit_fma(float sum, BFloat16 a, BFloat16 b) {
  return without_subnormals(__builtin_fmaf(unit_float(a), unit_float(b), without_subnormals(sum)));
}

struct PairDotTwin {
  BFloat16 numbers[2 * kLanes];

  static PairDotTwin loaded(const BFloat16* source, int count) {
    PairDotTwin result{};
    std::memcpy(result.numbers, source, sizeof(BFloat16) * static_cast<size_t>(count));
    return result;
  }

  static PairDotTwin of_one(const BFloat16* source) {
    PairDotTwin result;
    for (int i = 0; i < 2 * kLanes; ++i) result.numbers[i] = source[i % 2];
    return result;
  }
};

inline Floats pair_dot_twin(Floats sums, const PairDotTwin& a, const PairDotTwin& b) {
  for (int i = 0; i < kLanes; ++i) {
    const float second = unit_fma(sums[i], a.numbers[2 * i + 1], b.numbers[2 * i + 1]);
    sums[i] = unit_fma(second, a.numbers[2 * i], b.numbers[2 * i]);
  }
  return sums;
}

}  // namespace kvplan
