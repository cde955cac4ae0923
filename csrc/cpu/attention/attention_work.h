// What the two ways through a cache share: the call, the rows of an item, the unfinished softmax.
#pragma once

#include <cmath>

#include "../arena.h"
#include "attention_pairs.h"
#include "attention_plan.h"
#include "token_scales.h"
#include "../simd_math.h"
#include "../tile.h"

namespace kvplan {

struct Call {
  const kvplan_attention& args;
  int group;               // query heads of one KV head
  int padded_head;         // head_size rounded up to whole vectors, of a query
  int padded_value;        // value_size rounded up, of an output
  int max_rows;            // of any item
  const int32_t* members;  // SharedPrefixes::members
  bool by_pairs;           // items that read the cache where it lies take their scores from pairs (attention_pairs.h)
  bool by_wide_keys;       // a token's rows read the cache where it lies although they are many (attention_wide.h)
};

// The softmax of an item's rows so far: sum over tokens of exp(score - maximum) * value, and of the exponentials.
//
// Rows are ordered KV head, query token, head of the group: row = (head * num_queries + query) * group + g.
struct Partial {
  float* output;   // [rows, padded_value]
  float* maximum;  // [rows]
  float* sum;      // [rows, kLanes]: each lane has its share
};

// A thread's own memory.
struct Scratch {
  float* query;              // [rows, padded_head], scaled, zeros beyond head_size
  float* scores;             // [rows, kTileTokens]
  BFloat16* query_pairs;     // [rows, padded_to_pairs(head_size)]: by pairs, queries as they are, zeros beyond head_size
  float* packed_keys;        // [head_size, kTileTokens]
  float* packed_values;      // [kTileTokens, padded_value]
  const float** key_rows;    // [head_size]: the rows of packed_keys
  const float** value_rows;  // [kTileTokens]: the rows of packed_values
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
};

// Looks up to `most_tokens` tokens from `first` on up in the block table.
template <class T>
void find_rows(const Call& call, const Item& item, int first, int most_tokens, TileRows<T>& rows) {
  const kvplan_attention& args = call.args;
  const int64_t table_at = item.sequence * args.block_table_stride;
  const int32_t* table = args.block_tables + table_at;
  const int32_t* value_table = args.value_tables == nullptr ? table : args.value_tables + table_at;
  const T* keys = static_cast<const T*>(args.keys) + item.first_head * args.block_size * args.head_size;
  const T* values = static_cast<const T*>(args.values) + item.first_head * args.block_size * args.value_stride;
  rows.first = first;
  rows.tokens = item.kv_end - first < most_tokens ? item.kv_end - first : most_tokens;
  int t = 0;
  while (t < rows.tokens) {
    const int64_t position = first + t;
    int64_t within = position % args.block_size;
    const int64_t block = table[position / args.block_size] * args.block_stride;
    const int64_t value_block = value_table[position / args.block_size] * args.block_stride;
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

// Which of the tile's tokens a query token sees: [begin, end) within the tile.
struct Seen {
  int begin, end;
};

inline Seen seen_tokens(const Call& call, const Item& item, int query, int tile_first, int tile_tokens) {
  if (item.num_members > 0) return {0, tile_tokens};  // a shared prefix lies before everybody's newest token
  const kvplan_attention& args = call.args;
  const int query_len = args.query_starts[item.sequence + 1] - args.query_starts[item.sequence];
  const int64_t position = args.seq_lens[item.sequence] - query_len + item.first_query + query;
  const int64_t begin = args.window > 0 ? position + 1 - args.window - tile_first : 0;
  const int64_t end = position + 1 - tile_first;
  const int64_t bounded_end = end < tile_tokens ? (end > 0 ? end : 0) : tile_tokens;
  const int64_t bounded_begin = begin > 0 ? (begin < bounded_end ? begin : bounded_end) : 0;
  return {static_cast<int>(bounded_begin), static_cast<int>(bounded_end)};
}

inline void clear(const Call& call, int rows, Partial& partial) {
  std::memset(partial.output, 0, sizeof(float) * static_cast<size_t>(rows) * static_cast<size_t>(call.padded_value));
  std::memset(partial.sum, 0, sizeof(float) * static_cast<size_t>(rows) * kLanes);
  for (int r = 0; r < rows; ++r) partial.maximum[r] = -INFINITY;
}

// Brings a row's output and sum from its old maximum to a higher one.
KVPLAN_INLINE void raise_maximum(const Call& call, int row, float maximum, Partial& partial) {
  const float shrink = exp(splat(partial.maximum[row] - maximum))[0];
  float* output = partial.output + static_cast<int64_t>(row) * call.padded_value;
  for (int column = 0; column < call.padded_value; column += kLanes)
    store(output + column, load(output + column) * shrink);
  store(partial.sum + row * kLanes, load(partial.sum + row * kLanes) * shrink);
  partial.maximum[row] = maximum;
}

// What a row's scores grow by: slope times the distance of a tile's tokens from the row's query, `first` of the first.
struct Slope {
  float slope;
  int first;
};

inline Slope slope_of(const Call& call, const Item& item, int row, int tile_first) {
  const kvplan_attention& args = call.args;
  if (args.slopes == nullptr) return {0.0f, 0};
  const bool shared = item.num_members > 0;
  const int rows = item.num_queries * call.group, head = shared ? 0 : row / rows;
  const int sequence = shared ? call.members[item.first_member + row / call.group] : item.sequence;
  const int query_len = args.query_starts[sequence + 1] - args.query_starts[sequence];
  const int query = shared ? 0 : item.first_query + row % rows / call.group;
  const int position = args.seq_lens[sequence] - query_len + query;
  return {args.slopes[(item.first_head + head) * call.group + row % call.group], tile_first - position};
}

// scores [padded] += slope * distance.
inline void add_slope(const Slope& slope, int padded, float* scores) {
  Floats distances;
  for (int lane = 0; lane < kLanes; ++lane) distances[lane] = static_cast<float>(slope.first + lane);
  for (int t = 0; t < padded; t += kLanes) {
    store(scores + t, load(scores + t) + slope.slope * distances);
    distances += static_cast<float>(kLanes);
  }
}

// One row of one tile: softcap, slope, mask, running maximum; the scores become exp(score - maximum), zero where unseen.
// scores [padded tokens]
inline void update_softmax(const Call& call, const Seen& seen, const Slope& slope, int tokens, int row, float* scores,
                           Partial& partial) {
  const int padded = padded_to_lanes(tokens);
  const float softcap = call.args.softcap;
  if (softcap > 0.0f)
    for (int t = 0; t < padded; t += kLanes) store(scores + t, softcap * tanh(load(scores + t) * (1.0f / softcap)));
  if (slope.slope != 0.0f) add_slope(slope, padded, scores);
  for (int t = 0; t < seen.begin; ++t) scores[t] = -INFINITY;
  for (int t = seen.end; t < padded; ++t) scores[t] = -INFINITY;
  if (seen.begin >= seen.end) {
    for (int t = 0; t < padded; t += kLanes) store(scores + t, Floats{});
    return;
  }
  Floats largest = load(scores);
  for (int t = kLanes; t < padded; t += kLanes) largest = maximum(largest, load(scores + t));
  const float here = maximum_of(largest);
  if (here > partial.maximum[row]) raise_maximum(call, row, here, partial);
  const float highest = partial.maximum[row];
  Floats sums = load(partial.sum + row * kLanes);
  for (int t = 0; t < padded; t += kLanes) {
    const Floats weight = exp(load(scores + t) - highest);
    store(scores + t, weight);
    sums += weight;
  }
  store(partial.sum + row * kLanes, sums);
}

// into += part, both brought to the larger of their maxima.
inline void merge(const Call& call, int rows, Partial& part, Partial& into) {
  for (int r = 0; r < rows; ++r) {
    if (part.maximum[r] == -INFINITY) continue;
    if (part.maximum[r] > into.maximum[r]) raise_maximum(call, r, part.maximum[r], into);
    if (into.maximum[r] > part.maximum[r]) raise_maximum(call, r, into.maximum[r], part);
    float* target = into.output + static_cast<int64_t>(r) * call.padded_value;
    const float* source = part.output + static_cast<int64_t>(r) * call.padded_value;
    for (int column = 0; column < call.padded_value; column += kLanes)
      store(target + column, load(target + column) + load(source + column));
    store(into.sum + r * kLanes, load(into.sum + r * kLanes) + load(part.sum + r * kLanes));
  }
}

}  // namespace kvplan
