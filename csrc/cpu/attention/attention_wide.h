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
  if (args.chosen != nullptr) return true;
  return args.num_heads / args.num_kv_heads > kMostDirectRows && args.head_size >= kWideKey &&
         args.kv_storage != KVPLAN_FLOAT8_E4M3 && args.kv_storage != KVPLAN_INT8;
}

// Scores of all rows and the tile's tokens [begin, begin + 4).
template <class T, int kRows>
KVPLAN_INLINE void score_wide(const Call& call, const Scratch& scratch, const T* const* keys, int begin, int first_row,
                              int rows) {
  const int head_size = static_cast<int>(call.args.head_size);
  int row = first_row;
  for (; row + kRows <= rows; row += kRows) {
    float* scores = scratch.scores + row * kTileTokens + begin;
#if KVPLAN_PAIR_DOT
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

// As find_rows, of the tokens that the item's query token has chosen, by their number among these.
template <class T>
void find_chosen_rows(const Call& call, const Item& item, int first, int most_tokens, TileRows<T>& rows) {
  const kvplan_attention& args = call.args;
  const int64_t token = args.query_starts[item.sequence] + item.first_query;
  const int32_t* chosen = args.chosen + token * args.chosen_stride + first;
  const int32_t* table = args.block_tables + item.sequence * args.block_table_stride;
  rows.first = first;
  rows.tokens = item.kv_end - first < most_tokens ? item.kv_end - first : most_tokens;
  const int padded = (rows.tokens + 3) / 4 * 4;
  for (int t = 0; t < padded; ++t) {
    const int64_t position = chosen[t < rows.tokens ? t : rows.tokens - 1];
    const int64_t block = table[position / args.block_size] * args.block_stride, within = position % args.block_size;
    rows.keys[t] = static_cast<const T*>(args.keys) + block + within * args.head_size;
    rows.values[t] = static_cast<const T*>(args.values) + block + within * args.value_stride;
  }
}

template <class T>
void find_wide_rows(const Call& call, const Item& item, int first, TileRows<T>& rows) {
  const int most_tokens = kTileTokens - first % kTileTokens;
  if (call.args.chosen == nullptr) {
    find_rows(call, item, first, most_tokens, rows);
  } else {
    find_chosen_rows(call, item, first, most_tokens, rows);
  }
}

// For items of one KV head and one query token.
template <class T>
void attend_wide(const Call& call, const Item& item, Scratch& scratch) {
  const int rows = call.group, value_size = static_cast<int>(call.args.value_size);
  const int64_t key_bytes = call.args.head_size * int64_t{sizeof(T)};
  TileRows<T> tiles[2];
  int current = 0;
  find_wide_rows(call, item, item.kv_begin, tiles[0]);
  for (int first = item.kv_begin; first < item.kv_end; first += tiles[1 - current].tokens) {
    const TileRows<T>& tile = tiles[current];
    TileRows<T>& next = tiles[1 - current];
    current = 1 - current;
    next.tokens = 0;
    if (first + tile.tokens < item.kv_end) find_wide_rows(call, item, first + tile.tokens, next);
    for (int t = 0; t < tile.tokens; t += 4) {
      for (int ahead = t; ahead < t + 4 && ahead < next.tokens; ++ahead) prefetch_bytes(next.keys[ahead], key_bytes);
      score_wide<T, kDirectRows>(call, scratch, tile.keys, t, 0, rows);
    }
    update_softmax(call, item, first, tile.tokens, scratch);
    multiply<T, kPackedRows, kPackedVectors, true>(scratch.scores, kTileTokens, tile.values, 0, value_size, rows,
                                                   tile.tokens, scratch.partial.output, call.padded_value, scratch.shrink);
  }
}

}  // namespace kvplan
