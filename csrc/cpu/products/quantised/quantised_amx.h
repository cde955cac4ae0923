// Products with quantised weights in AMX's tiles: each group of inputs in one product of tiles or a few, then its scale.
//
// What the codes of some groups stand for is widened to bfloat16 into the first-level cache, as a packed panel lies
// (packed_tile.h), for all rows. A group's sums leave the tiles for memory, where vectors multiply them with the scales
// and add them up; meanwhile the tiles are at the next group. One row or two take the codes in registers, in the order in
// which tiles add: so a row is as in a batch.
#pragma once

#include "group_tiles.h"
#include "quantised_tile.h"

#if KVPLAN_AMX && KVPLAN_BFLOAT16_CODES

namespace kvplan {

// Inputs of a group that one product of tiles takes.
inline int64_t tile_depth(const CodeLayout& layout) {
  return layout.group % kTileInputs == 0 ? kTileInputs : layout.group % 16 == 0 ? 16 : 8;
}

// What the step's codes stand for, and its scales, to where the tiles and those who add read them.
template <int kBits, bool kLinear>
void widen_groups(const GroupStep<BFloat16>& step, const CodeLayout& layout, const Decoder<kBits, kLinear>& decoder) {
  BFloat16* wide = step.wide;
  for (int64_t g = 0; g < step.num_groups; ++g) {
    const StoredGroup group(step.panel, step.first_group + g, layout);
    const uint8_t* codes = group.codes();
    for (int64_t k = 0; k < layout.group; k += kUnitInputs<kBits>) {
#pragma GCC unroll 4
      for (int v = 0; v < kPanelVectors; ++v) {
        const CodeUnit<kBits> unit(codes + v * kLanes * 4);
#pragma GCC unroll 8
        for (int j = 0; j < kUnitInputs<kBits> / 2; ++j) {
          const Words pairs = decoder.pair(unit, j);
          std::memcpy(wide + 2 * j * kPanelOutputs + 2 * v * kLanes, &pairs, sizeof pairs);
        }
      }
      wide += kUnitInputs<kBits> * kPanelOutputs;
      codes += 4 * kPanelOutputs * kUnitWords<kBits>;
    }
    widen_scales(group, step.scales + g * kWideScales);
  }
  settle(step.wide);
}

// What add_group does for each of kGroups groups in their order, of more rows than registers hold. Two at a time read and
// write what is added to half as often.
template <int kGroups, bool kMinimum>
KVPLAN_INLINE void add_rows(const GroupSums<float>* from, const float* scales, const float* x_sums, int64_t x_sums_stride,
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
      Floats sum = load(sums + at);
#pragma GCC unroll 2
      for (int g = 0; g < kGroups; ++g) {
        sum = sum + scale[g][v] * load(from[g].values + at);
        if constexpr (kMinimum) sum = sum + minimum[g][v] * splat(x_sums[r * x_sums_stride + g]);
      }
      store(sums + at, sum);
    }
}

// step.sums += the step, of up to a tile's height of rows, from widened values.
template <bool kMinimum>
void run_in_tiles(const GroupStep<BFloat16>& step, const CodeLayout& layout, int64_t rows, ConfiguredTiles& tiles) {
  const int64_t depth = tile_depth(layout), x_bytes = step.x_stride * int64_t{sizeof(BFloat16)};
  configure_group_tiles(rows, depth * int64_t{sizeof(BFloat16)}, tiles);
  GroupSums<float> sums[2][2];
  const char* ahead = step.ahead;
  const auto multiply = [&](int64_t g, int64_t pair) {
    for (int64_t line = 0; line < step.ahead_bytes; line += 64) __builtin_prefetch(ahead + line, 0, 2);
    ahead += step.ahead_bytes;
    multiply_group(step.x + g * layout.group, x_bytes, step.wide + g * layout.group * kPanelOutputs, layout.group, depth,
                   sums[pair][g % 2]);
  };
  const auto add = [&](int64_t g, int64_t pair, auto count) {
    const float* const x_sums = kMinimum ? step.x_sums + g : nullptr;
    add_rows<decltype(count)::value, kMinimum>(sums[pair], step.scales + g * kWideScales, x_sums, step.x_sums_stride, rows,
                                               step.sums);
  };
  for_groups_in_pairs(step.num_groups, multiply, add);
}

// Rows that take the codes in registers.
constexpr int64_t kMostRowsOfVectors = 2;

// sums += a whole panel of one row or two, in the tiles' order: of each product of tiles the first and the second numbers
// of pairs apart, then together.
template <int kRows, int kBits, bool kLinear>
void run_in_order_of_tiles(const GroupStep<BFloat16>& step, const CodeLayout& layout,
                           const Decoder<kBits, kLinear>& decoder) {
  constexpr int64_t kInputs = kUnitInputs<kBits>, kUnitBytes = 4 * kPanelOutputs * kUnitWords<kBits>;
  const int64_t group_bytes = layout.group_bytes(), depth = tile_depth(layout);
  const int64_t ahead = divided_up(kCodesAheadBytes, group_bytes) * group_bytes;
  const BFloat16* x = step.x;
  for (int64_t g = 0; g < step.num_groups; ++g) {
    TileSums<kRows, 1> tile = {};
    const StoredGroup group(step.panel, step.first_group + g, layout);
    const uint8_t* codes = group.codes();
    prefetch_near(group.first + ahead, layout.scales_bytes());
    for (int64_t begin = 0; begin < layout.group; begin += depth) {
      TileSums<kRows, 1> first = {}, second = {};
      for (int64_t k = 0; k < depth; k += kInputs) {
#pragma GCC unroll 12
        for (int64_t line = 0; line < kUnitBytes; line += 64) __builtin_prefetch(codes + ahead + line, 0, 3);
#pragma GCC unroll 4
        for (int v = 0; v < kPanelVectors; ++v) {
          const CodeUnit<kBits> unit(codes + v * kLanes * 4);
#pragma GCC unroll 8
          for (int j = 0; j < kInputs / 2; ++j) {
            const Words pairs = decoder.pair(unit, j);
            const Floats one = reinterpret_cast<Floats>(pairs << 16);
            const Floats other = reinterpret_cast<Floats>(pairs & 0xffff0000u);
#pragma GCC unroll 2
            for (int r = 0; r < kRows; ++r) {
              first[r][0][v] += splat(to_float(x[r * step.x_stride + 2 * j])) * one;
              second[r][0][v] += splat(to_float(x[r * step.x_stride + 2 * j + 1])) * other;
            }
          }
        }
        x += kInputs;
        codes += kUnitBytes;
      }
      for (int r = 0; r < kRows; ++r)
        for (int v = 0; v < kPanelVectors; ++v) tile[r][0][v] += first[r][0][v] + second[r][0][v];
    }
    add_group<kRows>(tile, group.scales(), group.minimums(), layout.has_minimum,
                     step.x_sums == nullptr ? nullptr : step.x_sums + g, step.x_sums_stride, step.sums);
  }
}

}  // namespace kvplan

#endif
