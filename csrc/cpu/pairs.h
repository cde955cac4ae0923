// Dot products of pairs of bfloat16 by the processor: each of kLanes floats gains the products of two numbers.
//
// AVX-512's vdpbf16ps adds the pair's second product first, each addition rounded; NEON's bfdot adds both at once with a
// rounding of its own. Neither keeps subnormal numbers. Where a processor has neither, KVPLAN_PAIR_DOT is 0 and nothing
// here is compiled, but for tests, which run AVX-512's definition as plain loops (KVPLAN_TWINS).
#pragma once

#include "simd.h"

namespace kvplan {

// Numbers of one register of bfloat16.
constexpr int kPairNumbers = 2 * kLanes;

}  // namespace kvplan

#if KVPLAN_PAIR_DOT
#if defined(KVPLAN_TWINS)
#include "twins/pair_dot.h"
#endif

namespace kvplan {

#if defined(KVPLAN_TWINS)

typedef PairDotTwin Pairs;

KVPLAN_INLINE Pairs load_pairs(const BFloat16* source) {
  return Pairs::loaded(source, kPairNumbers);
}

KVPLAN_INLINE Pairs load_pairs(const BFloat16* source, int count) {
  return Pairs::loaded(source, count < kPairNumbers ? count : kPairNumbers);
}

KVPLAN_INLINE Pairs splat_pair(const BFloat16* source) {
  return Pairs::of_one(source);
}

KVPLAN_INLINE Floats add_pairs(Floats sums, Pairs a, Pairs b) {
  return pair_dot_twin(sums, a, b);
}

KVPLAN_INLINE Pairs pairs_of(Words words) {
  BFloat16 numbers[kPairNumbers];
  std::memcpy(numbers, &words, sizeof numbers);
  return load_pairs(numbers);
}

#elif KVPLAN_BFLOAT16_DOT

typedef __m512i Pairs;

// Each word's halves.
KVPLAN_INLINE Pairs pairs_of(Words words) {
  return (__m512i)words;
}

KVPLAN_INLINE Pairs load_pairs(const BFloat16* source) {
  return _mm512_loadu_si512(source);
}

// The first `count` numbers, zeros behind them; touches nothing beyond.
KVPLAN_INLINE Pairs load_pairs(const BFloat16* source, int count) {
  if (count >= kPairNumbers) return load_pairs(source);
  return _mm512_maskz_loadu_epi16(static_cast<__mmask32>((uint32_t{1} << count) - 1), source);
}

// The two numbers at `source`, as the pair of every lane.
KVPLAN_INLINE Pairs splat_pair(const BFloat16* source) {
  int32_t pair;
  std::memcpy(&pair, source, sizeof pair);
  return _mm512_set1_epi32(pair);
}

KVPLAN_INLINE Floats add_pairs(Floats sums, Pairs a, Pairs b) {
  return reinterpret_cast<Floats>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(sums), (__m512bh)a, (__m512bh)b));
}

#else

typedef bfloat16x8_t Pairs;

KVPLAN_INLINE Pairs load_pairs(const BFloat16* source) {
  return vreinterpretq_bf16_u16(vld1q_u16(reinterpret_cast<const uint16_t*>(source)));
}

KVPLAN_INLINE Pairs load_pairs(const BFloat16* source, int count) {
  if (count >= kPairNumbers) return load_pairs(source);
  uint16_t numbers[kPairNumbers] = {};
  std::memcpy(numbers, source, sizeof(uint16_t) * static_cast<size_t>(count));
  return vreinterpretq_bf16_u16(vld1q_u16(numbers));
}

KVPLAN_INLINE Pairs splat_pair(const BFloat16* source) {
  int32_t pair;
  std::memcpy(&pair, source, sizeof pair);
  return vreinterpretq_bf16_s32(vdupq_n_s32(pair));
}

KVPLAN_INLINE Floats add_pairs(Floats sums, Pairs a, Pairs b) {
  return (Floats)vbfdotq_f32((float32x4_t)sums, a, b);
}

#endif

}  // namespace kvplan

#endif
