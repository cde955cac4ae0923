// The inner loops of products with quantised weights (quantised_codes.h).
//
// Within a group of inputs the rows are multiplied with what the codes stand for, and the group's sum with its scale:
//
//   out = sum over groups of scale * (sum of x * value) + minimum * (sum of x)
//
// Values of codes are whole numbers, or few bits: exact in bfloat16, so that the processors' dot products of bfloat16 lose
// nothing. Few rows take the values from the codes in registers; of more, the first rows leave the values of some groups in
// the first-level cache, and the others pass over them. Both add in the same order, so a row's result does not depend on its batch.
#pragma once

#include "../packed/packed_product.h"
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
  const uint8_t* panel;
  int64_t first_group;
  W* wide;               // [groups, group, kPanelOutputs] as packed_tile.h has it
  float* scales;         // [groups, kWideScales], a group's scales and its minimums
  int64_t num_groups;
  float* sums;           // [rows, kPanelOutputs], added to
  const char* ahead;     // of run_wide: codes needed soon, prefetched on the way
  int64_t ahead_bytes;   // from one load of values to the next
};

// Scales, or minimums, that were widened.
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
    // The next vectors' sums are read after this: of many rows all at once do not fit the registers.
    if constexpr (kRows >= 5) asm volatile("" ::: "memory");
  }
}

// Vectors of a panel whose codes are in registers at once: those of 6 bits take three for each.
template <int kBits>
constexpr int kUnitVectors = kBits == 6 ? 2 : kPanelVectors;

// One unit of codes, whose values are stored too where `wide` says so.
template <int kRows, int kBits, bool kLinear, bool kKeeps>
KVPLAN_INLINE void add_unit(TileSums<kRows, 1>& tile, const float* x, int64_t x_stride, const uint8_t* codes,
                            const Decoder<kBits, kLinear>& decoder, [[maybe_unused]] float* wide) {
#pragma GCC unroll 4
  for (int v = 0; v < kPanelVectors; ++v) {
    const CodeUnit<kBits> unit(codes + v * kLanes * 4);
#pragma GCC unroll 16
    for (int k = 0; k < kUnitInputs<kBits>; ++k) {
      const Floats values = decoder.values(unit, k);
      if constexpr (kKeeps) store(wide + k * kPanelOutputs + v * kLanes, values);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) tile[r][0][v] += splat(x[r * x_stride + k]) * values;
    }
  }
}

#if KVPLAN_BFLOAT16_CODES
template <int kRows, int kBits, bool kLinear, bool kKeeps>
KVPLAN_INLINE void add_unit(TileSums<kRows, 1>& tile, const BFloat16* x, int64_t x_stride, const uint8_t* codes,
                            const Decoder<kBits, kLinear>& decoder, [[maybe_unused]] BFloat16* wide) {
#pragma GCC unroll 2
  for (int first = 0; first < kPanelVectors; first += kUnitVectors<kBits>) {
    CodeUnit<kBits> units[kUnitVectors<kBits>];
#pragma GCC unroll 4
    for (int v = 0; v < kUnitVectors<kBits>; ++v) units[v] = CodeUnit<kBits>(codes + (first + v) * kLanes * 4);
#pragma GCC unroll 8
    for (int j = 0; j < kUnitInputs<kBits> / 2; ++j)
#pragma GCC unroll 4
      for (int v = 0; v < kUnitVectors<kBits>; ++v) {
        const Words words = decoder.pair(units[v], j);
        if constexpr (kKeeps) std::memcpy(wide + 2 * j * kPanelOutputs + 2 * (first + v) * kLanes, &words, sizeof words);
        const Pairs values = pairs_of(words);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          Floats& sums = tile[r][0][first + v];
          sums = add_pairs(sums, splat_pair(x + r * x_stride + 2 * j), values);
        }
      }
    // x is read again for the other vectors: kept in registers it would push the sums out of them.
    if constexpr (kUnitVectors<kBits> < kPanelVectors) asm volatile("" ::: "memory");
  }
}
#endif

// How far ahead codes are prefetched.
constexpr int64_t kCodesAheadBytes = 4096;

// One group's scales and minimums; these where there are some.
inline void widen_scales(const StoredGroup& group, float* scales) {
  const StoredScales stored = group.scales(), minimums = group.minimums();
  for (int v = 0; v < kPanelVectors; ++v) store(scales + v * kLanes, stored(v));
  for (int v = 0; v < kPanelVectors && group.layout.has_minimum; ++v)
    store(scales + kPanelOutputs + v * kLanes, minimums(v));
}

// sums += the step, from the codes themselves. kKeeps: values and scales are stored for the tiles that follow: what widens
// them waits for other units of the processor than what multiplies.
template <class W, int kRows, int kBits, bool kLinear, bool kKeeps>
void run_codes(const GroupStep<W>& step, const CodeLayout& layout, const Decoder<kBits, kLinear>& decoder) {
  constexpr int64_t kInputs = kUnitInputs<kBits>, kUnitBytes = 4 * kPanelOutputs * kUnitWords<kBits>;
  // A panel that is read once comes from memory, scales and all: they are prefetched where whole groups lie ahead.
  const bool is_read_once = step.num_groups == layout.groups;
  const int64_t group_bytes = layout.group_bytes();
  const int64_t ahead = is_read_once ? divided_up(kCodesAheadBytes, group_bytes) * group_bytes : kCodesAheadBytes;
  const Input<W>* x = step.x;
  W* wide = step.wide;
  for (int64_t g = 0; g < step.num_groups; ++g) {
    TileSums<kRows, 1> tile = {};
    const StoredGroup group(step.panel, step.first_group + g, layout);
    const uint8_t* codes = group.codes();
    if (is_read_once) prefetch_near(group.first + ahead, layout.scales_bytes());
    for (int64_t k = 0; k < layout.group; k += kInputs) {
#pragma GCC unroll 12
      for (int64_t line = 0; line < kUnitBytes; line += 64) __builtin_prefetch(codes + ahead + line, 0, 3);
      add_unit<kRows, kBits, kLinear, kKeeps>(tile, x, step.x_stride, codes, decoder, wide);
      if constexpr (kKeeps) wide += kInputs * kPanelOutputs;
      x += kInputs;
      codes += kUnitBytes;
    }
    const float* x_sums = step.x_sums == nullptr ? nullptr : step.x_sums + g;
    if constexpr (kKeeps) {
      float* scales = step.scales + g * kWideScales;
      widen_scales(group, scales);
      add_group<kRows>(tile, WideScales{scales}, WideScales{scales + kPanelOutputs}, layout.has_minimum, x_sums,
                       step.x_sums_stride, step.sums);
    } else {
      add_group<kRows>(tile, group.scales(), group.minimums(), layout.has_minimum, x_sums, step.x_sums_stride,
                       step.sums);
    }
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

}  // namespace kvplan
