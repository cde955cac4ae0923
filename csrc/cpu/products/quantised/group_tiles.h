// What products of tiles with quantised weights share, whether of bfloat16 or of bytes: the tiles' shapes, a group's
// product, and groups of inputs two at a time.
#pragma once

#include <type_traits>

#include "../packed/packed_amx.h"

#if KVPLAN_AMX

namespace kvplan {

// Sums of a group in tiles 0 to 3, `row_bytes` of each row of x in 4, weights in 5 to 7 by turns.
inline void configure_group_tiles(int64_t rows, int64_t row_bytes, ConfiguredTiles& tiles) {
  if (tiles.rows == rows && tiles.row_bytes == row_bytes) return;
  TileShapes shapes;
  for (int tile = 0; tile < 5; ++tile) shapes.set(tile, static_cast<int>(rows));
  for (int tile = 5; tile < 8; ++tile) shapes.set(tile, static_cast<int>(row_bytes / 4));
  shapes.row_bytes[4] = static_cast<uint16_t>(row_bytes);
  settle(&shapes);
  KVPLAN_TILE_CONFIGURE(&shapes);
  tiles.rows = rows;
  tiles.row_bytes = row_bytes;
}

// One group's sums of a tile of rows, on their way from the tiles.
template <class Sum>
struct GroupSums {
  alignas(64) Sum values[kTileHeight * kPanelOutputs];
};

// A macro, as compilers take tiles' numbers as literals alone.
#define KVPLAN_GROUP_TILE_MULTIPLY(sums, weights) \
  if constexpr (sizeof(X) == 1) {                 \
    KVPLAN_TILE_MULTIPLY_BYTES(sums, 4, weights); \
  } else {                                        \
    KVPLAN_TILE_MULTIPLY(sums, 4, weights);       \
  }

// The sums of one group. x: of the first row; weights: a panel of the same width as x, such as [group / 4, kPanelOutputs,
// 4] bytes; both at the group's first input.
template <class X, class Weight, class Sum>
KVPLAN_INLINE void multiply_group(const X* x, int64_t x_bytes, const Weight* weights, int64_t group, int64_t depth,
                                  GroupSums<Sum>& sums) {
  static_assert(sizeof(X) == sizeof(Weight), "tiles pair numbers of one width");
  constexpr int64_t kQuarter = 4 / int64_t{sizeof(X)} * kTileOutputs;
  KVPLAN_TILE_ZERO(0);
  KVPLAN_TILE_ZERO(1);
  KVPLAN_TILE_ZERO(2);
  KVPLAN_TILE_ZERO(3);
  for (int64_t k = 0; k < group; k += depth) {
    const Weight* const at = weights + k * kPanelOutputs;
    KVPLAN_TILE_LOAD(4, x + k, x_bytes);
    KVPLAN_TILE_LOAD(5, at, kPanelRowBytes);
    KVPLAN_GROUP_TILE_MULTIPLY(0, 5);
    KVPLAN_TILE_LOAD(6, at + kQuarter, kPanelRowBytes);
    KVPLAN_GROUP_TILE_MULTIPLY(1, 6);
    KVPLAN_TILE_LOAD(7, at + 2 * kQuarter, kPanelRowBytes);
    KVPLAN_GROUP_TILE_MULTIPLY(2, 7);
    KVPLAN_TILE_LOAD(5, at + 3 * kQuarter, kPanelRowBytes);
    KVPLAN_GROUP_TILE_MULTIPLY(3, 5);
  }
  KVPLAN_TILE_STORE(0, sums.values, kSumsRowBytes);
  KVPLAN_TILE_STORE(1, sums.values + kTileOutputs, kSumsRowBytes);
  KVPLAN_TILE_STORE(2, sums.values + 2 * kTileOutputs, kSumsRowBytes);
  KVPLAN_TILE_STORE(3, sums.values + 3 * kTileOutputs, kSumsRowBytes);
}
#undef KVPLAN_GROUP_TILE_MULTIPLY

// multiply(g, pair) for each group in its order, and add(g, pair, count) for pairs of them, the last one perhaps alone, while
// tiles are at the next pair already. pair: 0 or 1, in turn.
template <class Multiply, class Add>
KVPLAN_INLINE void for_groups_in_pairs(int64_t groups, const Multiply& multiply, const Add& add) {
  const int64_t paired = groups / 2 * 2;
  for (int64_t g = 0; g < paired; g += 2) {
    multiply(g, g / 2 % 2);
    multiply(g + 1, g / 2 % 2);
    if (g > 0) add(g - 2, (g - 2) / 2 % 2, std::integral_constant<int, 2>{});
  }
  if (paired < groups) multiply(paired, paired / 2 % 2);
  if (paired > 0) add(paired - 2, (paired - 2) / 2 % 2, std::integral_constant<int, 2>{});
  if (paired < groups) add(paired, paired / 2 % 2, std::integral_constant<int, 1>{});
}

}  // namespace kvplan

#endif
