// Products of rounded rows in AMX's tiles of bytes: a group's integers in one product of tiles or a few, then the scales.
//
// Codes of 8 bits are multiplied where they lie; others are left behind as bytes (widen_codes), for all rows. Integers
// are the same by whichever instruction, and what follows is add_scaled's: so a row is as in a batch of any size.
#pragma once

#include "../quantised/group_tiles.h"
#include "rounded_product.h"
#include "rounded_tile.h"

#if KVPLAN_AMX_INT8

namespace kvplan {

constexpr int64_t kByteTileInputs = 64;  // a row of a tile of bytes

// Inputs of a group that one product of tiles takes.
inline int64_t byte_tile_depth(int64_t group) {
  return group % kByteTileInputs == 0 ? kByteTileInputs : group % 32 == 0 ? 32 : group % 16 == 0 ? 16 : 8;
}

// What add_scaled does for each of kGroups groups in their order, of more rows than registers hold. x: at the first row
// and group. Two groups at a time read and write what is added to half as often.
template <int kGroups, bool kMinimum>
KVPLAN_INLINE void add_scaled_rows(const GroupSums<int32_t>* from, const float* scales, const RoundedRows& x, int64_t row_groups,
                                   int64_t rows, float* sums) {
  Floats scale[kGroups][kPanelVectors], minimum[kGroups][kPanelVectors];
  settle(from);
#pragma GCC unroll 2
  for (int g = 0; g < kGroups; ++g)
#pragma GCC unroll 4
    for (int v = 0; v < kPanelVectors; ++v) {
      scale[g][v] = load(scales + g * kWideScales + v * kLanes);
      if constexpr (kMinimum) minimum[g][v] = load(scales + g * kWideScales + kPanelOutputs + v * kLanes);
    }
  for (int64_t r = 0; r < rows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kPanelVectors; ++v) {
      const int64_t at = r * kPanelOutputs + v * kLanes;
      Floats value = load(sums + at);
#pragma GCC unroll 2
      for (int g = 0; g < kGroups; ++g) {
        Ints integers;
        std::memcpy(&integers, from[g].values + at, sizeof integers);
        integers += x.starts[r * row_groups + g];
        value = value + scale[g][v] * (__builtin_convertvector(integers, Floats) * splat(x.scales[r * row_groups + g]));
        if constexpr (kMinimum) value = value + minimum[g][v] * splat(x.sums[r * row_groups + g]);
      }
      store(sums + at, value);
    }
}

// step.sums += the step, of up to a tile's height of rows. codes(g): of its g-th group, a byte each.
template <bool kMinimum, class CodesOf>
void run_bytes_in_tiles(const RoundedStep& step, const CodeLayout& layout, int64_t rows, const CodesOf& codes,
                        ConfiguredTiles& tiles) {
  const int64_t depth = byte_tile_depth(layout.group);
  configure_group_tiles(rows, depth, tiles);
  GroupSums<int32_t> sums[2][2];
  const char* ahead = step.ahead;
  const auto multiply = [&](int64_t g, int64_t pair) {
    for (int64_t line = 0; line < step.ahead_bytes; line += 64) __builtin_prefetch(ahead + line, 0, 2);
    ahead += step.ahead_bytes;
    multiply_group(step.x.codes + g * layout.group, step.x.stride, codes(g), layout.group, depth, sums[pair][g % 2]);
  };
  const auto add = [&](int64_t g, int64_t pair, auto count) {
    const RoundedRows x{nullptr, 0, step.x.scales + g, step.x.starts + g, kMinimum ? step.x.sums + g : nullptr};
    add_scaled_rows<decltype(count)::value, kMinimum>(sums[pair], step.scales + g * kWideScales, x, step.row_groups, rows,
                                                      step.sums);
  };
  for_groups_in_pairs(step.num_groups, multiply, add);
}

}  // namespace kvplan

#endif
