// What the ways through a cache share: the call, an item's rows, a tile's tokens.
#pragma once

#include "../arena.h"
#include "attention_plan.h"
#include "attention_scores.h"
#include "token_scales.h"
#include "../tile.h"

namespace kvplan {

struct Call {
  const kvplan_attention& args;
  int group;               // query heads of one KV head
  int padded_head;         // head_size rounded up to whole vectors, of a query
  int padded_value;        // value_size rounded up, of an output
  int max_rows;            // of any item
  int max_heads;           // of any item
  const int32_t* members;  // SharedPrefixes::members
  bool by_pairs;           // items that read the cache where it lies take their scores from pairs (attention_scores.h)
  bool by_tiles;           // items of many rows are computed in tiles (tiles/)
  bool by_wide_keys;       // a token's rows read the cache where it lies although they are many (attention_wide.h)
};

// The softmax of an item's rows so far: sum over tokens of exp(score - maximum) * value, and of the exponentials.
//
// Rows are ordered KV head, query token, head of the group: row = (head * num_queries + query) * group + g.
struct Partial {
  float* output;   // [rows, padded_value]
  float* maximum;  // [rows, rounded up to whole vectors]
  float* sum;      // [rows, kLanes]: each lane has its share
};

struct TileColumns;

// What only tiles need of a thread's own memory (tiles/).
struct TileScratch {
  uint32_t* queries;     // [tiles of rows, chunks of 32 numbers, 16 pairs, 16 columns]
  float* scores;         // [tiles of scores, units, 16, 16]
  uint32_t* weights;     // [tiles of rows, parts, 16 rows, 16 pairs of tokens]
  uint32_t* values;      // [halves of chunks, 16 pairs of tokens, 16]
  float* products;       // [2, halves of chunks, 16 rows, 16]
  TileColumns* columns;  // [tiles of scores]
};

// A thread's own memory.
struct Scratch {
  float* query;              // [rows, padded_head], scaled, zeros beyond head_size
  float* scores;             // [rows, kTileTokens]
  float* shrink;             // [rows, rounded up to whole vectors]: what the last tile leaves of the rows' outputs
  BFloat16* query_pairs;     // [rows, padded_to_pairs(head_size)]: by pairs, queries as they are, zeros beyond head_size
  float* packed_keys;        // [head_size, kTileTokens]
  float* packed_values;      // [kTileTokens, padded_value]
  const float** key_rows;    // [head_size]: the rows of packed_keys
  const float** value_rows;  // [kTileTokens]: the rows of packed_values
  TileScratch tiles;
  Partial partial;
};

inline int item_rows(const Call& call, const Item& item) {
  if (item.num_members > 0) return item.num_members * call.group;
  return item.num_heads * item.num_queries * call.group;
}

// Pointers to the first KV head's keys and values of consecutive tokens; beyond `tokens`, to the last token's.
template <class T>
struct TileRows : TileScales<T> {
  const T* keys[kTileTokens];
  const T* values[kTileTokens];
  int first;
  int tokens;
  bool side_by_side = false;  // in one block, with slots behind them up to a whole vector of tokens
};

// Which blocks a sequence's keys and values lie in.
struct BlockTables {
  const int32_t* keys;
  const int32_t* values;
};

inline BlockTables tables_of(const kvplan_attention& args, int64_t sequence) {
  const int64_t at = sequence * args.block_table_stride;
  const int32_t* keys = args.block_tables + at;
  return {keys, args.value_tables == nullptr ? keys : args.value_tables + at};
}

// Looks up to `most_tokens` tokens from `first` on up in the block table.
template <class T>
void find_rows(const Call& call, const Item& item, int first, int most_tokens, TileRows<T>& rows) {
  const kvplan_attention& args = call.args;
  const BlockTables tables = tables_of(args, item.sequence);
  const T* keys = static_cast<const T*>(args.keys) + item.first_head * args.block_size * args.head_size;
  const T* values = static_cast<const T*>(args.values) + item.first_head * args.block_size * args.value_stride;
  rows.first = first;
  rows.tokens = item.kv_end - first < most_tokens ? item.kv_end - first : most_tokens;
  rows.side_by_side = first % args.block_size + padded_to_lanes(rows.tokens) <= args.block_size;
  int t = 0;
  while (t < rows.tokens) {
    const int64_t position = first + t;
    int64_t within = position % args.block_size;
    const int64_t block = tables.keys[position / args.block_size] * args.block_stride;
    const int64_t value_block = tables.values[position / args.block_size] * args.block_stride;
    for (; t < rows.tokens && within < args.block_size; ++t, ++within) {
      rows.keys[t] = keys + block + within * args.head_size;
      rows.values[t] = values + value_block + within * args.value_stride;
    }
    if constexpr (kHasScales<T>) {
      const int64_t place = item.first_head * args.block_size + position % args.block_size;
      rows.point_at(args.key_scales + block / kScaleBytes + place, args.value_scales + value_block / kScaleBytes + place,
                    static_cast<int>(position - first), t);
    }
  }
  const int padded = (t + 3) / 4 * 4;
  for (; t < padded; ++t) {
    rows.keys[t] = rows.keys[t - 1];
    rows.values[t] = rows.values[t - 1];
  }
}

}  // namespace kvplan
