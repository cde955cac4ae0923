// The inner loops of products of rounded rows (rounded_rows.h) with codes that count evenly.
//
// Within a group of inputs codes and integers are multiplied as bytes and added in 32 bits, exactly; then
//
//   out = sum over groups of scale * (integer sum * scale of x) + minimum * (sum of rounded x)
//
// in float32. A sum of 256 products of 255 and 127 at most is below 2^24, so float32 holds it exactly.
#pragma once

#include "../quantised/quantised_tile.h"
#include "rounded_dot.h"
#include "rounded_rows.h"

namespace kvplan {

// Some rows over some groups of one panel.
struct RoundedStep {
  RoundedRows x;         // at the first row and group
  int64_t row_groups;    // from row to row of x's scales, starts and sums
  const uint8_t* panel;
  int64_t first_group, num_groups;
  const uint8_t* bytes;  // [groups, group / 4, kPanelOutputs, 4]: the codes, a byte each
  const float* scales;   // [groups, kWideScales], a group's scales and its minimums: where several tiles need them
  float* sums;           // [rows, kPanelOutputs], added to
  const char* ahead;     // codes needed soon, prefetched on the way
  int64_t ahead_bytes;   // from group to group
};

template <int kRows>
using IntegerSums = Ints[kRows][kPanelVectors];

template <int kRows, int kBits>
KVPLAN_INLINE void add_codes(IntegerSums<kRows>& tile, const int8_t* x, int64_t x_stride, const uint8_t* codes) {
  constexpr int kTogether = kUnitVectors<kBits>;
#pragma GCC unroll 4
  for (int first = 0; first < kPanelVectors; first += kTogether) {
#pragma GCC unroll 4
    for (int q = 0; q < kUnitInputs<kBits> / 4; ++q) {
      Words quads[kTogether];
#pragma GCC unroll 4
      for (int v = 0; v < kTogether; ++v) quads[v] = quad_of<kBits>(codes + (first + v) * kLanes * 4, q);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const Quad quad(x + r * x_stride + 4 * q);
#pragma GCC unroll 4
        for (int v = 0; v < kTogether; ++v) tile[r][first + v] = quad.dot(tile[r][first + v], quads[v]);
      }
      // The next codes are read after this: all of a unit's at once push the sums out of the registers.
      if constexpr (kBits != 6) asm volatile("" ::: "memory");
    }
    if constexpr (kBits == 6) asm volatile("" ::: "memory");
  }
}

// Of the rows at one group: where it is in their scales and sums, and their outputs' sums. By value: a store into `out`
// could change whatever a reference leads to.
struct GroupOfRows {
  const float* scales;
  const float* sums;
  int64_t stride;
  float* out;
};

template <int kRows, class Scales>
KVPLAN_INLINE void add_scaled(const IntegerSums<kRows>& tile, Scales scales, Scales minimums, bool has_minimum,
                              const GroupOfRows rows) {
#pragma GCC unroll 4
  for (int v = 0; v < kPanelVectors; ++v) {
    const Floats scale = scales(v);
    float* out = rows.out + v * kLanes;
    if (has_minimum) {
      const Floats minimum = minimums(v);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const Floats sum = __builtin_convertvector(tile[r][v], Floats) * splat(rows.scales[r * rows.stride]);
        const Floats value = load(out + r * kPanelOutputs) + scale * sum;
        store(out + r * kPanelOutputs, value + minimum * splat(rows.sums[r * rows.stride]));
      }
    } else {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const Floats sum = __builtin_convertvector(tile[r][v], Floats) * splat(rows.scales[r * rows.stride]);
        store(out + r * kPanelOutputs, load(out + r * kPanelOutputs) + scale * sum);
      }
    }
    if constexpr (kRows >= 5) asm volatile("" ::: "memory");
  }
}

// Where a tile takes codes from: a panel that it alone reads, scales and all, and that comes from memory; one that
// several tiles read, in the first-level cache; or bytes, which are as codes of 8 bits.
enum class CodesFrom { kMemory, kPanel, kBytes };

// sums += the step.
template <int kRows, int kBits, CodesFrom kFrom>
void run_rounded(const RoundedStep& step, const CodeLayout& layout) {
  constexpr bool kOnce = kFrom == CodesFrom::kMemory;
  constexpr int64_t kInputs = kUnitInputs<kBits>, kUnitBytes = 4 * kPanelOutputs * kUnitWords<kBits>;
  const int64_t group_bytes = layout.group_bytes(), scales_bytes = layout.scales_bytes(), inputs = layout.group;
  const int64_t ahead = divided_up(kCodesAheadBytes, group_bytes) * group_bytes;
  const int64_t x_stride = step.x.stride, row_groups = step.row_groups, num_groups = step.num_groups;
  const bool has_minimum = layout.has_minimum;
  const int8_t* x = step.x.codes;
  const int32_t* starts = step.x.starts;
  GroupOfRows rows{step.x.scales, step.x.sums, row_groups, step.sums};
  [[maybe_unused]] const char* next = step.ahead;
  [[maybe_unused]] const int64_t next_bytes = step.ahead_bytes;
  const uint8_t* bytes = step.bytes;
  const float* wide_scales = step.scales;
  for (int64_t g = 0; g < num_groups; ++g) {
    IntegerSums<kRows> tile;
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < kPanelVectors; ++v) tile[r][v] = starts[r * row_groups] - Ints{};
    const StoredGroup group(step.panel, step.first_group + g, layout);
    const uint8_t* codes = kFrom == CodesFrom::kBytes ? bytes : group.codes();
    if constexpr (kOnce) {
      prefetch_near(group.first + ahead, scales_bytes);
    } else {
      for (int64_t i = 0; i < next_bytes; i += 64) __builtin_prefetch(next + i, 0, 2);
      next += next_bytes;
      bytes += inputs * kPanelOutputs;
    }
    for (int64_t k = 0; k < inputs; k += kInputs) {
      if constexpr (kOnce) prefetch_near(codes + ahead, kUnitBytes);
      add_codes<kRows, kBits>(tile, x, x_stride, codes);
      x += kInputs;
      codes += kUnitBytes;
    }
    if constexpr (kOnce) {
      add_scaled<kRows>(tile, group.scales(), group.minimums(), has_minimum, rows);
    } else {
      add_scaled<kRows>(tile, WideScales{wide_scales}, WideScales{wide_scales + kPanelOutputs}, has_minimum, rows);
      wide_scales += kWideScales;
    }
    ++starts;
    ++rows.scales;
    rows.sums += has_minimum ? 1 : 0;
  }
}

// The codes of a step as bytes.
template <int kBits>
void widen_codes(const RoundedStep& step, const CodeLayout& layout, uint8_t* bytes) {
  for (int64_t g = 0; g < step.num_groups; ++g) {
    const uint8_t* codes = StoredGroup(step.panel, step.first_group + g, layout).codes();
    for (int64_t k = 0; k < layout.group; k += kUnitInputs<kBits>) {
#pragma GCC unroll 4
      for (int v = 0; v < kPanelVectors; ++v)
#pragma GCC unroll 4
        for (int q = 0; q < kUnitInputs<kBits> / 4; ++q) {
          const Words words = quad_of<kBits>(codes + v * kLanes * 4, q);
          std::memcpy(bytes + (q * kPanelVectors + v) * kLanes * 4, &words, sizeof words);
        }
      bytes += kUnitInputs<kBits> * kPanelOutputs;
      codes += 4 * kPanelOutputs * kUnitWords<kBits>;
    }
  }
}

}  // namespace kvplan
