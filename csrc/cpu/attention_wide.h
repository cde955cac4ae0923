// Many query rows on one KV head with long keys (decode of latent attention): the cache is read where it lies.
//
// Of a long key the sum across lanes costs little beside its products, and packing a tile for one token's rows costs more
// than it saves. Four keys at a time stay in the first-level cache while all rows pass over them; the values of a tile
// follow by columns, from the second-level cache, where the keys brought them if they are their beginnings.
#pragma once

#include "attention_direct.h"

namespace kvplan {

// Elements of a key from which on a token's rows read the cache directly, however many they are.
constexpr int64_t kWideKey = 256;

// Elements of 8 bits are widened slowly, which packing does once for all rows.
inline bool reads_wide_keys(const kvplan_attention& args) {
  return args.num_heads / args.num_kv_heads > kMostDirectRows && args.head_size >= kWideKey &&
         args.kv_storage != KVPLAN_FLOAT8_E4M3;
}

// Scores of all rows and the tile's tokens [begin, begin + 4).
template <class T, int kRows>
KVPLAN_INLINE void score_wide(const Call& call, const Scratch& scratch, const T* const* keys, int begin, int first_row,
                              int rows) {
  const int head_size = static_cast<int>(call.args.head_size);
  int row = first_row;
  for (; row + kRows <= rows; row += kRows) {
    float* scores = scratch.scores + row * kTileTokens + begin;
#if KVPLAN_BFLOAT16_DOT
    if constexpr (std::is_same_v<T, BFloat16>) {
      if (call.by_pairs) {
        const int64_t stride = padded_to_pairs(head_size);
        score_four_tokens_by_pairs<kRows>(scratch.query_pairs + row * stride, stride, keys + begin, 0, head_size,
                                          call.args.scale, scores, kTileTokens);
        continue;
      }
    }
#endif
    score_four_tokens<T, kRows>(scratch.query + static_cast<int64_t>(row) * call.padded_head, call.padded_head,
                                keys + begin, 0, head_size, scores, kTileTokens);
  }
  if constexpr (kRows > 1) {
    if (row < rows) score_wide<T, kRows - 1>(call, scratch, keys, begin, row, rows);
  }
}

// For items of one KV head and one query token.
template <class T>
void attend_wide(const Call& call, const Item& item, Scratch& scratch) {
  const int rows = call.group, value_size = static_cast<int>(call.args.value_size);
  const int64_t key_bytes = call.args.head_size * int64_t{sizeof(T)};
  TileRows<T> tiles[2];
  int current = 0;
  find_rows(call, item, item.kv_begin, kTileTokens - item.kv_begin % kTileTokens, tiles[0]);
  for (int first = item.kv_begin; first < item.kv_end; first += tiles[1 - current].tokens) {
    const TileRows<T>& tile = tiles[current];
    TileRows<T>& next = tiles[1 - current];
    current = 1 - current;
    next.tokens = 0;
    if (first + tile.tokens < item.kv_end) find_rows(call, item, first + tile.tokens, kTileTokens, next);
    for (int t = 0; t < tile.tokens; t += 4) {
      for (int ahead = t; ahead < t + 4 && ahead < next.tokens; ++ahead) prefetch_bytes(next.keys[ahead], key_bytes);
      score_wide<T, kDirectRows>(call, scratch, tile.keys, t, 0, rows);
    }
    const Seen seen = seen_tokens(call, item, 0, first, tile.tokens);
    for (int row = 0; row < rows; ++row)
      update_softmax(call, seen, slope_of(call, item, row, first), tile.tokens, row,
                     scratch.scores + row * kTileTokens, scratch.partial);
    multiply<T, kPackedRows, kPackedVectors, true>(scratch.scores, kTileTokens, tile.values, 0, value_size, rows,
                                                   tile.tokens, scratch.partial.output, call.padded_value);
  }
}

}  // namespace kvplan
