// What products of tiles with quantised weights share, whether of bfloat16 or of bytes: the tiles' shapes, and groups of
// inputs two at a time.
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
