// Scores of a run of tokens that lie side by side, and scores of queries and keys in bfloat16 by the processor's dot
// products of pairs.
//
// Products of two bfloat16 numbers are exact in float32, and so are their sums here as everywhere. Values are widened all
// the same (tile.h): their pairs would be two tokens', with the softmax's weights rounded to bfloat16, which shows in the
// result.
#pragma once

#include "../ahead.h"
#include "../pairs.h"

namespace kvplan {

// Queries are padded to whole registers of bfloat16.
constexpr int padded_to_pairs(int64_t width) {
  return static_cast<int>((width + kPairNumbers - 1) / kPairNumbers * kPairNumbers);
}

// How a register of a query's numbers is multiplied with one of a key's.
template <class T>
struct DotProduct;

template <>
struct DotProduct<float> {
  static constexpr int kNumbers = kLanes;
  static KVPLAN_INLINE Floats load_whole(const float* source) { return load(source); }
  static KVPLAN_INLINE Floats added(Floats sums, Floats a, Floats b) { return sums + a * b; }
};

#if KVPLAN_PAIR_DOT

template <>
struct DotProduct<BFloat16> {
  static constexpr int kNumbers = kPairNumbers;
  static KVPLAN_INLINE Pairs load_whole(const BFloat16* source) { return load_pairs(source); }
  static KVPLAN_INLINE Floats added(Floats sums, Pairs a, Pairs b) { return add_pairs(sums, a, b); }
};

#endif

// scores[t] = scale * query . keys[t] for kLanes tokens, while kTurns turns of `ahead` are asked for. query [kHead], keys
// [kLanes, kHead].
//
// One row at a time, with all its sums in registers, takes fewer instructions than several rows and four tokens, whose
// sums across lanes come in fours. Not inlined: in its caller's loop GCC keeps an address for each key, in memory.
template <class T, int kHead, int kTurns>
__attribute__((noinline)) void score_run(const T* query, const T* keys, float scale, float* scores, Ahead& ahead) {
  using Dot = DotProduct<T>;
  constexpr int kRegisters = kHead / Dot::kNumbers;
  decltype(Dot::load_whole(query)) parts[kRegisters];
#pragma GCC unroll 32
  for (int i = 0; i < kRegisters; ++i) parts[i] = Dot::load_whole(query + i * Dot::kNumbers);
  Floats sums[kLanes];
#pragma GCC unroll 16
  for (int t = 0; t < kLanes; ++t) {  // in the order of addresses, which the processor's own prefetching goes by
    const T* key = keys + t * kHead;
    if (t * kTurns % kLanes < kTurns) ahead.ask_turn();
    sums[t] = Floats{};
#pragma GCC unroll 32
    for (int i = 0; i < kRegisters; ++i)
      sums[t] = Dot::added(sums[t], parts[i], Dot::load_whole(key + i * Dot::kNumbers));
  }
  store(scores, sums_of_each(sums) * scale);
}

#if KVPLAN_PAIR_DOT

constexpr bool kHasPairs = true;

// scores[r][t] = scale * query[r] . key[t] for kRows rows and the four tokens whose keys lie `offset` behind keys[0..3].
// query [kRows, query_stride], padded with zeros to whole registers; scores [kRows, score_stride]
template <int kRows>
KVPLAN_INLINE void score_four_tokens_by_pairs(const BFloat16* query, int64_t query_stride, const BFloat16* const* keys,
                                              int64_t offset, int head_size, float scale, float* scores,
                                              int64_t score_stride) {
  Floats sums[kRows][4] = {};
  for (int column = 0; column < head_size; column += kPairNumbers) {
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
