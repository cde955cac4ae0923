// The inner loops of what adapters add to a product: x A^T, some rows and ranks at a time, and its product with B.
//
// The order of additions is the same for every number of rows, so a row's result does not depend on its batch.
#pragma once

#include "../packed/packed_tile.h"

namespace kvplan {

constexpr int kNarrowRows = 4;   // of x in a register tile, beside as many of A
constexpr int kNarrowRanks = 4;

template <int kRows>
using NarrowSums = Floats[kRows][kNarrowRanks];

// Adds the inputs that the processor's dot products take; how many these are.
template <int kRows, class T>
KVPLAN_INLINE int64_t add_paired_inputs(NarrowSums<kRows>&, const T* const*, const T* const*, int64_t) {
  return 0;
}

#if KVPLAN_PAIR_DOT
template <int kRows>
KVPLAN_INLINE int64_t add_paired_inputs(NarrowSums<kRows>& sums, const BFloat16* const* x, const BFloat16* const* down,
                                        int64_t inputs) {
  const int64_t whole = inputs / (2 * kLanes) * (2 * kLanes);
  for (int64_t k = 0; k < whole; k += 2 * kLanes) {
    Pairs weights[kNarrowRanks];
#pragma GCC unroll 4
    for (int c = 0; c < kNarrowRanks; ++c) weights[c] = load_pairs(down[c] + k);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const Pairs value = load_pairs(x[r] + k);
#pragma GCC unroll 4
      for (int c = 0; c < kNarrowRanks; ++c) sums[r][c] = add_pairs(sums[r][c], value, weights[c]);
    }
  }
  return whole;
}
#endif

// `count` elements, at most a vector.
template <class T>
KVPLAN_INLINE Floats load_first(const T* source, int count) {
  return count == kLanes ? load(source) : load_part(source, count);
}

// sums[r][c] += x[r] . down[c] for `count` inputs from k on, at most a vector.
template <int kRows, class T>
KVPLAN_INLINE void add_inputs(NarrowSums<kRows>& sums, const T* const* x, const T* const* down, int64_t k, int count) {
  Floats weights[kNarrowRanks];
#pragma GCC unroll 4
  for (int c = 0; c < kNarrowRanks; ++c) weights[c] = load_first(down[c] + k, count);
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    const Floats value = load_first(x[r] + k, count);
#pragma GCC unroll 4
    for (int c = 0; c < kNarrowRanks; ++c) sums[r][c] += value * weights[c];
  }
}

// result[r][c] = x[r] . down[c]
template <int kRows, class T>
void narrow_tile(const T* const* x, const T* const* down, int64_t inputs, Floats4* result) {
  NarrowSums<kRows> sums = {};
  int64_t k = add_paired_inputs<kRows>(sums, x, down, inputs);
  for (; k + kLanes <= inputs; k += kLanes) add_inputs<kRows>(sums, x, down, k, kLanes);
  if (k < inputs) add_inputs<kRows>(sums, x, down, k, static_cast<int>(inputs - k));
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) result[r] = sums_of_four(sums[r][0], sums[r][1], sums[r][2], sums[r][3]);
}

// B of one adapter at some outputs, and what is multiplied with it.
template <class T>
struct WidenStep {
  const T* up;        // [rank, outputs], at the first output
  int64_t outputs;    // from row to row of B
  int64_t rank;
  float* const* sums;                          // of each row
  const typename Inner<T>::Input* const* inner;  // [packed_inputs(rank)] of each row
};

// sums[r] (+)= inner[r] . B, one rank after the other, for kVectors vectors from output `first` on.
template <int kRows, int kVectors>
KVPLAN_INLINE void add_ranks(Floats (&sums)[kRows][kVectors], const WidenStep<float>& step, int64_t first) {
  for (int64_t k = 0; k < step.rank; ++k) {
    const float* row = step.up + k * step.outputs + first;
    Floats weights[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) weights[v] = load(row + v * kLanes);
    prefetch_bytes(row + kPanelOutputs, kVectors * kLanes * int64_t{sizeof(float)});
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[r][v] += step.inner[r][k] * weights[v];
  }
}

template <int kRows, int kVectors>
KVPLAN_INLINE void add_ranks(Floats (&sums)[kRows][kVectors], const WidenStep<BFloat16>& step, int64_t first) {
#if KVPLAN_BFLOAT16_DOT
  // the words of two rows of B in turn: first those of the lower lanes, then of the upper
  static constexpr uint16_t kOrders[2][32] = {{0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                               8,  40, 9,  41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47},
                                              {16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55,
                                               24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63}};
  const __m512i orders[2] = {_mm512_loadu_si512(kOrders[0]), _mm512_loadu_si512(kOrders[1])};
  for (int64_t k = 0; k < step.rank; k += 2) {
    const BFloat16* row = step.up + k * step.outputs + first;
    __m512bh weights[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; v += 2) {
      const __m512i one = _mm512_loadu_si512(row + v * kLanes);
      const bool is_last = k + 1 == step.rank;
      const __m512i other = is_last ? _mm512_setzero_si512() : _mm512_loadu_si512(row + step.outputs + v * kLanes);
      weights[v] = (__m512bh)_mm512_permutex2var_epi16(one, orders[0], other);
      weights[v + 1] = (__m512bh)_mm512_permutex2var_epi16(one, orders[1], other);
    }
    prefetch_bytes(row + kPanelOutputs, kVectors * kLanes * int64_t{sizeof(BFloat16)});
    prefetch_bytes(row + step.outputs + kPanelOutputs, kVectors * kLanes * int64_t{sizeof(BFloat16)});
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      int32_t pair;
      std::memcpy(&pair, step.inner[r] + k, sizeof pair);
      const __m512bh value = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[r][v] = (Floats)_mm512_dpbf16_ps((__m512)sums[r][v], value, weights[v]);
    }
  }
#else
  for (int64_t k = 0; k < step.rank; ++k) {
    const BFloat16* row = step.up + k * step.outputs + first;
    Floats weights[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) weights[v] = load(row + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[r][v] += to_float(step.inner[r][k]) * weights[v];
  }
#endif
}

// The outputs of a whole panel.
template <int kRows, class T>
void widen_panel(const WidenStep<T>& step) {
  constexpr int kVectors = kRows > 4 ? kPanelVectors / 2 : kPanelVectors;
  for (int64_t first = 0; first < kPanelOutputs; first += kVectors * kLanes) {
    Floats sums[kRows][kVectors];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[r][v] = load(step.sums[r] + first + v * kLanes);
    add_ranks<kRows, kVectors>(sums, step, first);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) store(step.sums[r] + first + v * kLanes, sums[r][v]);
  }
}

// Any number of outputs, of `rows` rows.
template <class T>
void widen_some(const WidenStep<T>& step, int rows, int64_t outputs) {
  for (int64_t first = 0; first < outputs; first += kLanes) {
    const int count = outputs - first < kLanes ? static_cast<int>(outputs - first) : kLanes;
    for (int r = 0; r < rows; ++r) {
      float* target = step.sums[r] + first;
      Floats sum = load_first(target, count);
      for (int64_t k = 0; k < step.rank; ++k)
        sum += to_float(step.inner[r][k]) * load_first(step.up + k * step.outputs + first, count);
      store_part(target, sum, count);
    }
  }
}

}  // namespace kvplan
