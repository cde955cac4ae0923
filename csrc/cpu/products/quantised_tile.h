// The inner loops of products with quantised weights (quantised_codes.h).
//
// Within a group of inputs the rows are multiplied with what the codes stand for, and the group's sum with its scale:
//
//   out = sum over groups of scale * (sum of x * value) + minimum * (sum of x)
//
// Values of codes are whole numbers, or few bits: exact in bfloat16, so that the processors' dot products of bfloat16 lose
// nothing. Few rows take the values from the codes in registers; for more, some groups are widened into the first-level
// cache and all rows pass over them. Both add in the same order, so a row's result does not depend on its batch.
#pragma once

#include "packed_product.h"
#include "quantised_codes.h"

namespace kvplan {

// What the groups' values are widened to, W, and x with them: bfloat16 only where dot products of it exist.
template <class W>
constexpr int kWidePairs = Inner<W>::kInputs;

constexpr int kWideScales = 2 * kPanelOutputs;

// Some rows over some groups of one panel.
template <class W>
struct GroupStep {
  const Input<W>* x;   // [rows, x_stride], at the first group
  int64_t x_stride;
  const float* x_sums; // [rows, x_sums_stride], at the first group: of each group's inputs; null without minimums
  int64_t x_sums_stride;
  const uint8_t* panel;  // at the first group
  const W* wide;         // [groups, group, kPanelOutputs] as packed_tile.h has it; null: codes are taken from the panel
  const float* scales;   // of run_wide: [groups, kWideScales], a group's scales and its minimums
  int64_t num_groups;
  float* sums;           // [rows, kPanelOutputs], added to
  const char* ahead;     // of run_wide: codes needed soon, prefetched on the way
  int64_t ahead_bytes;   // from one load of values to the next
};

// Scales, or minimums, as a panel has them, and widened.
struct StoredScales {
  const uint8_t* first;
  int64_t bytes;  // of one
  KVPLAN_INLINE Floats operator()(int v) const { return load_scales(first, v, bytes); }
};
struct WideScales {
  const float* first;
  KVPLAN_INLINE Floats operator()(int v) const { return load(first + v * kLanes); }
};

template <int kRows, class Scales>
KVPLAN_INLINE void add_group(const TileSums<kRows, 1>& tile, Scales scales, Scales minimums, bool has_minimum,
                             const float* x_sums, int64_t x_sums_stride, float* sums) {
#pragma GCC unroll 4
  for (int v = 0; v < kPanelVectors; ++v) {
    const Floats scale = scales(v);
    if (has_minimum) {
      const Floats minimum = minimums(v);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        float* target = sums + r * kPanelOutputs + v * kLanes;
        const Floats sum = load(target) + scale * tile[r][0][v];
        store(target, sum + minimum * splat(x_sums[r * x_sums_stride]));
      }
    } else {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        float* target = sums + r * kPanelOutputs + v * kLanes;
        store(target, load(target) + scale * tile[r][0][v]);
      }
    }
  }
}

// One load of code words: 8 inputs of 4 bits, or 4 of 8.
template <int kRows, int kBits, bool kLinear>
KVPLAN_INLINE void add_words(TileSums<kRows, 1>& tile, const float* x, int64_t x_stride, const uint8_t* codes,
                             const Decoder<kBits, kLinear>& decoder) {
  Words words[kPanelVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kPanelVectors; ++v) words[v] = load_code_words(codes + v * kLanes * 4);
#pragma GCC unroll 8
  for (int k = 0; k < 32 / kBits; ++k)
#pragma GCC unroll 4
    for (int v = 0; v < kPanelVectors; ++v) {
      const Floats values = decoder.values(words[v], code_shift(kBits, k));
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) tile[r][0][v] += splat(x[r * x_stride + k]) * values;
    }
}

#if KVPLAN_BFLOAT16_DOT
template <int kRows, int kBits, bool kLinear>
KVPLAN_INLINE void add_words(TileSums<kRows, 1>& tile, const BFloat16* x, int64_t x_stride, const uint8_t* codes,
                             const Decoder<kBits, kLinear>& decoder) {
  Words words[kPanelVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kPanelVectors; ++v) words[v] = load_code_words(codes + v * kLanes * 4);
#pragma GCC unroll 4
  for (int j = 0; j < 16 / kBits; ++j)
#pragma GCC unroll 4
    for (int v = 0; v < kPanelVectors; ++v) {
      const __m512bh values = decoder.pair(words[v], j);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        int32_t pair;
        std::memcpy(&pair, x + r * x_stride + 2 * j, sizeof pair);
        tile[r][0][v] = (Floats)_mm512_dpbf16_ps((__m512)tile[r][0][v], (__m512bh)_mm512_set1_epi32(pair), values);
      }
    }
}
#endif

// How far ahead codes are prefetched.
constexpr int64_t kCodesAheadBytes = 4096;

KVPLAN_INLINE void prefetch_lines(const uint8_t* first, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(first + i, 0, 3);
}

// sums += the step, from the codes themselves.
template <class W, int kRows, int kBits, bool kLinear>
void run_codes(const GroupStep<W>& step, const CodeLayout& layout, const Decoder<kBits, kLinear>& decoder) {
  constexpr int64_t kInputs = 32 / kBits;
  constexpr int64_t kWordBytes = 4 * kPanelOutputs;
  // A panel that is read once comes from memory, scales and all: they are prefetched where whole groups lie ahead.
  const bool is_read_once = step.num_groups == layout.groups;
  const int64_t group_bytes = layout.group_bytes();
  const int64_t ahead = is_read_once ? divided_up(kCodesAheadBytes, group_bytes) * group_bytes : kCodesAheadBytes;
  const Input<W>* x = step.x;
  const uint8_t* panel = step.panel;
  for (int64_t g = 0; g < step.num_groups; ++g) {
    TileSums<kRows, 1> tile = {};
    const uint8_t* codes = panel + layout.scales_bytes();
    if (is_read_once) prefetch_lines(panel + ahead, layout.scales_bytes());
    for (int64_t k = 0; k < layout.group; k += kInputs) {
#pragma GCC unroll 4
      for (int64_t line = 0; line < kWordBytes; line += 64) __builtin_prefetch(codes + ahead + line, 0, 3);
      add_words<kRows>(tile, x, step.x_stride, codes, decoder);
      x += kInputs;
      codes += kWordBytes;
    }
    add_group<kRows>(tile, StoredScales{panel, layout.scale_bytes},
                     StoredScales{panel + layout.scale_bytes * kPanelOutputs, layout.scale_bytes}, layout.has_minimum,
                     step.x_sums == nullptr ? nullptr : step.x_sums + g, step.x_sums_stride, step.sums);
    panel += group_bytes;
  }
}

// sums += the step, from widened values.
template <class W, int kRows>
void run_wide(const GroupStep<W>& step, const CodeLayout& layout) {
  constexpr int64_t kInputs = Inner<W>::kInputs;
  const Input<W>* x = step.x;
  const W* wide = step.wide;
  const float* scales = step.scales;
  const char* ahead = step.ahead;
  for (int64_t g = 0; g < step.num_groups; ++g) {
    TileSums<kRows, 1> tile = {};
    for (int64_t k = 0; k < layout.group; k += kInputs) {
      __builtin_prefetch(ahead, 0, 2);
      ahead += step.ahead_bytes;
      add_inputs<kRows, 1>(tile, x, step.x_stride, wide, 0);
      x += kInputs;
      wide += kInputs * kPanelOutputs;
    }
    add_group<kRows>(tile, WideScales{scales}, WideScales{scales + kPanelOutputs}, layout.has_minimum,
                     step.x_sums == nullptr ? nullptr : step.x_sums + g, step.x_sums_stride, step.sums);
    scales += kWideScales;
  }
}

// One group's scales and minimums; these where there are some.
inline void widen_scales(const uint8_t* panel, const CodeLayout& layout, float* scales) {
  const int vectors = layout.has_minimum ? 2 * kPanelVectors : kPanelVectors;
  for (int v = 0; v < vectors; ++v) store(scales + v * kLanes, load_scales(panel, v, layout.scale_bytes));
}

// The values of one group's codes, as packed_tile.h lays a panel out.
template <int kBits, bool kLinear>
void widen_group(const uint8_t* codes, int64_t group, const Decoder<kBits, kLinear>& decoder, float* wide) {
  constexpr int64_t kInputs = 32 / kBits;
  for (int64_t k = 0; k < group; k += kInputs)
#pragma GCC unroll 4
    for (int v = 0; v < kPanelVectors; ++v) {
      const Words words = load_code_words(codes + (k / kInputs * kPanelOutputs + v * kLanes) * 4);
#pragma GCC unroll 8
      for (int i = 0; i < kInputs; ++i)
        store(wide + (k + i) * kPanelOutputs + v * kLanes, decoder.values(words, code_shift(kBits, i)));
    }
}

#if KVPLAN_BFLOAT16_DOT
template <int kBits, bool kLinear>
void widen_group(const uint8_t* codes, int64_t group, const Decoder<kBits, kLinear>& decoder, BFloat16* wide) {
  constexpr int64_t kInputs = 32 / kBits;
  for (int64_t k = 0; k < group; k += kInputs)
#pragma GCC unroll 4
    for (int v = 0; v < kPanelVectors; ++v) {
      const Words words = load_code_words(codes + (k / kInputs * kPanelOutputs + v * kLanes) * 4);
#pragma GCC unroll 4
      for (int j = 0; j < kInputs / 2; ++j)
        _mm512_storeu_si512(wide + (k + 2 * j) * kPanelOutputs + 2 * v * kLanes, (__m512i)decoder.pair(words, j));
    }
}
#endif

}  // namespace kvplan
