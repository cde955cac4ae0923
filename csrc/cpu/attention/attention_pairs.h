// Scores in the processor's dot products of pairs of bfloat16, for queries and keys in bfloat16.
//
// Products of two bfloat16 numbers are exact in float32, and so are their sums here as everywhere. Values are widened all
// the same (tile.h): their pairs would be two tokens', with the softmax's weights rounded to bfloat16, which shows in the
// result. Where there are no such instructions nothing here is compiled.
#pragma once

#include "../simd.h"

namespace kvplan {

// Columns of one register of bfloat16: queries are padded to whole ones.
constexpr int kPairColumns = 2 * kLanes;

constexpr int padded_to_pairs(int64_t width) {
  return static_cast<int>((width + kPairColumns - 1) / kPairColumns * kPairColumns);
}

#if KVPLAN_BFLOAT16_DOT

constexpr bool kHasPairs = true;

typedef __m512i Pairs;

KVPLAN_INLINE Pairs load_pairs(const BFloat16* source) {
  return _mm512_loadu_si512(source);
}

// The first `count` <= kPairColumns values, zeros behind them; touches nothing beyond.
KVPLAN_INLINE Pairs load_pairs(const BFloat16* source, int count) {
  if (count >= kPairColumns) return load_pairs(source);
  return _mm512_maskz_loadu_epi16(static_cast<__mmask32>((uint32_t{1} << count) - 1), source);
}

KVPLAN_INLINE Floats add_pairs(Floats sums, Pairs a, Pairs b) {
  return reinterpret_cast<Floats>(
      _mm512_dpbf16_ps(reinterpret_cast<__m512>(sums), (__m512bh)a, (__m512bh)b));
}

// scores[r][t] = scale * query[r] . key[t] for kRows rows and the four tokens whose keys lie `offset` behind keys[0..3].
// query [kRows, query_stride], padded with zeros to whole registers; scores [kRows, score_stride]
template <int kRows>
KVPLAN_INLINE void score_four_tokens_by_pairs(const BFloat16* query, int64_t query_stride, const BFloat16* const* keys,
                                              int64_t offset, int head_size, float scale, float* scores,
                                              int64_t score_stride) {
  Floats sums[kRows][4] = {};
  for (int column = 0; column < head_size; column += kPairColumns) {
    Pairs key[4];
#pragma GCC unroll 4
    for (int t = 0; t < 4; ++t) key[t] = load_pairs(keys[t] + offset + column, head_size - column);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Pairs q = load_pairs(query + r * query_stride + column);
#pragma GCC unroll 4
      for (int t = 0; t < 4; ++t) sums[r][t] = add_pairs(sums[r][t], q, key[t]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const Floats4 four = sums_of_four(sums[r][0], sums[r][1], sums[r][2], sums[r][3]) * scale;
    std::memcpy(scores + r * score_stride, &four, sizeof four);
  }
}

#else

constexpr bool kHasPairs = false;

#endif

}  // namespace kvplan
