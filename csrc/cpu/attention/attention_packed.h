// Many query rows per KV head (prefill): each tile of the cache is packed as float32 once, keys transposed, and serves
// all rows through small matrix products.
#pragma once

#include "attention_softmax.h"

namespace kvplan {

inline void point_at_packed_rows(const Call& call, Scratch& scratch) {
  for (int64_t i = 0; i < call.args.head_size; ++i) scratch.key_rows[i] = scratch.packed_keys + i * kTileTokens;
  for (int64_t i = 0; i < kTileTokens; ++i) scratch.value_rows[i] = scratch.packed_values + i * call.padded_value;
}

// For items of one KV head.
template <class T>
void attend_packed(const Call& call, const Item& item, Scratch& scratch) {
  const int head_size = static_cast<int>(call.args.head_size), value_size = static_cast<int>(call.args.value_size);
  const int rows = item_rows(call, item);
  TileRows<T> tile;
  for (int first = item.kv_begin; first < item.kv_end; first += tile.tokens) {
    find_rows(call, item, first, kTileTokens, tile);
    pack_transposed(tile.keys, (tile.tokens + 3) / 4 * 4, head_size, scratch.packed_keys);
    multiply<float, kPackedRows, kPackedVectors, false>(scratch.query, call.padded_head, scratch.key_rows, 0,
                                                        padded_to_lanes(tile.tokens), rows, head_size, scratch.scores,
                                                        kTileTokens);
    if constexpr (kHasScales<T>) multiply_scales(tile.key_scales, 0, rows, tile.tokens, scratch.scores);
    update_softmax(call, item, first, tile.tokens, scratch);
    if constexpr (kHasScales<T>) multiply_scales(tile.value_scales, 0, rows, tile.tokens, scratch.scores);
    pack_rows(tile.values, tile.tokens, value_size, call.padded_value, scratch.packed_values);
    multiply<float, kPackedRows, kPackedVectors, true>(scratch.scores, kTileTokens, scratch.value_rows, 0,
                                                       call.padded_value, rows, tile.tokens, scratch.partial.output,
                                                       call.padded_value, scratch.shrink);
  }
}

}  // namespace kvplan
