// Paged attention with an online softmax (Milakov & Gimelshein 2018; split over the cache as in flash-decoding).
//
// For each item (attention_plan.h) the cache is walked in tiles of up to 64 tokens. A tile's keys give the scores of
// all the item's query rows, the softmax's running maximum and sum are brought up to date, and the tile's values are
// added to the output. Few rows (decode) read the cache where it lies; many rows (prefill) first pack the tile.
#include <atomic>
#include <cmath>
#include <new>

#include "arena.h"
#include "attention_plan.h"
#include "parallel.h"
#include "simd_math.h"
#include "tile.h"

namespace kvplan {
namespace {

// Up to this many query rows it is cheaper to sum each score across lanes than to transpose the keys first.
constexpr int kMostDirectRows = 10;
// What the tile's keys, or its values, may take of the first-level cache when they are read where they lie.
constexpr int64_t kDirectTileBytes = 16384;

// The unfinished softmax of one item: sum over tokens of exp(score - maximum) * value, and of the exponentials.
struct Partial {
  float* output;   // [rows, padded_head]
  float* maximum;  // [rows]
  float* sum;      // [rows]
};

struct Scratch {
  float* query;             // [rows, padded_head], scaled, zeros beyond head_size
  float* scores;            // [rows, kTileTokens]
  float* packed_keys;       // [head_size, kTileTokens]
  float* packed_values;     // [kTileTokens, padded_head]
  const float** key_rows;   // [head_size]: the rows of packed_keys
  const float** value_rows; // [kTileTokens]: the rows of packed_values
  Partial partial;
};

struct Call {
  const kvplan_attention& args;
  int group;
  int max_rows;
  int padded_head;
};

// Pointers to the keys and values of consecutive tokens; beyond `tokens`, to the last token's.
template <class T>
struct TileRows {
  const T* keys[kTileTokens];
  const T* values[kTileTokens];
  int first;
  int tokens;
};

Partial take_partial(Cutter& cutter, const Call& call) {
  Partial partial;
  partial.output = cutter.take<float>(static_cast<int64_t>(call.max_rows) * call.padded_head);
  partial.maximum = cutter.take<float>(call.max_rows);
  partial.sum = cutter.take<float>(call.max_rows);
  return partial;
}

Scratch take_scratch(Cutter& cutter, const Call& call) {
  Scratch scratch;
  scratch.query = cutter.take<float>(static_cast<int64_t>(call.max_rows) * call.padded_head);
  scratch.scores = cutter.take<float>(static_cast<int64_t>(call.max_rows) * kTileTokens);
  scratch.packed_keys = cutter.take<float>(call.args.head_size * kTileTokens);
  scratch.packed_values = cutter.take<float>(static_cast<int64_t>(kTileTokens) * call.padded_head);
  scratch.key_rows = cutter.take<const float*>(call.args.head_size);
  scratch.value_rows = cutter.take<const float*>(kTileTokens);
  scratch.partial = take_partial(cutter, call);
  return scratch;
}

void point_at_packed_rows(const Call& call, Scratch& scratch) {
  for (int64_t i = 0; i < call.args.head_size; ++i) scratch.key_rows[i] = scratch.packed_keys + i * kTileTokens;
  for (int64_t i = 0; i < kTileTokens; ++i) scratch.value_rows[i] = scratch.packed_values + i * call.padded_head;
}

template <class T>
void load_queries(const Call& call, const Item& item, float* query) {
  const kvplan_attention& args = call.args;
  const int64_t first_row = args.query_starts[item.sequence] + item.first_query;
  const T* source = static_cast<const T*>(args.query) + item.kv_head * call.group * args.query_head_stride;
  const int head_size = static_cast<int>(args.head_size);
  for (int i = 0; i < item.num_queries; ++i) {
    for (int g = 0; g < call.group; ++g) {
      const T* head = source + (first_row + i) * args.query_row_stride + g * args.query_head_stride;
      int column = 0;
      for (; column + kLanes <= head_size; column += kLanes) store(query + column, load(head + column) * args.scale);
      if (column < head_size) store(query + column, load_part(head + column, head_size - column) * args.scale);
      query += call.padded_head;
    }
  }
}

template <class T>
void store_output(const Call& call, const Item& item, const Partial& partial) {
  const kvplan_attention& args = call.args;
  const int64_t first_row = args.query_starts[item.sequence] + item.first_query;
  T* target = static_cast<T*>(args.out) + item.kv_head * call.group * args.out_head_stride;
  const int head_size = static_cast<int>(args.head_size);
  for (int r = 0; r < item.num_queries * call.group; ++r) {
    T* head = target + (first_row + r / call.group) * args.out_row_stride + r % call.group * args.out_head_stride;
    const float* source = partial.output + static_cast<int64_t>(r) * call.padded_head;
    const float factor = partial.sum[r] > 0.0f ? 1.0f / partial.sum[r] : 0.0f;
    int column = 0;
    for (; column + kLanes <= head_size; column += kLanes) store(head + column, load(source + column) * factor);
    if (column < head_size) store_part(head + column, load(source + column) * factor, head_size - column);
  }
}

template <class T>
void find_rows(const Call& call, const Item& item, int first, int most_tokens, TileRows<T>& rows) {
  const kvplan_attention& args = call.args;
  const int32_t* table = args.block_tables + item.sequence * args.block_table_stride;
  const int64_t head_offset = item.kv_head * args.block_size * args.head_size;
  const T* keys = static_cast<const T*>(args.keys) + head_offset;
  const T* values = static_cast<const T*>(args.values) + head_offset;
  rows.first = first;
  rows.tokens = item.kv_end - first < most_tokens ? item.kv_end - first : most_tokens;
  int t = 0;
  while (t < rows.tokens) {
    const int64_t position = first + t;
    int64_t within = position % args.block_size;
    const int64_t block = table[position / args.block_size] * args.block_stride;
    for (; t < rows.tokens && within < args.block_size; ++t, ++within) {
      rows.keys[t] = keys + block + within * args.head_size;
      rows.values[t] = values + block + within * args.head_size;
    }
  }
  for (; t < kTileTokens && t > 0; ++t) {
    rows.keys[t] = rows.keys[t - 1];
    rows.values[t] = rows.values[t - 1];
  }
}

template <class T, int kRows>
void score_rows(const Call& call, const TileRows<T>& tile, const float* query, int rows, bool fetch_values,
                float* scores) {
  const int head_size = static_cast<int>(call.args.head_size);
  int r = 0;
  for (; r + kRows <= rows; r += kRows) {
    for (int t = 0; t < tile.tokens; t += 4) {
      if (fetch_values && r == 0)
        for (int i = 0; i < 4; ++i) prefetch_bytes(tile.values[t + i], head_size * static_cast<int64_t>(sizeof(T)));
      score_four_tokens<T, kRows>(query + r * call.padded_head, call.padded_head, tile.keys + t, head_size,
                                  scores + r * kTileTokens + t);
    }
  }
  if constexpr (kRows > 1) {
    if (r < rows)
      score_rows<T, kRows - 1>(call, tile, query + r * call.padded_head, rows - r, fetch_values && r == 0,
                               scores + r * kTileTokens);
  }
}

// Scores of few rows, from the keys where they lie; the tile's values are on their way meanwhile.
template <class T>
void score_directly(const Call& call, const TileRows<T>& tile, int rows, Scratch& scratch) {
  score_rows<T, kDirectRows>(call, tile, scratch.query, rows, true, scratch.scores);
}

template <class T>
void score_packed(const Call& call, const TileRows<T>& tile, int rows, Scratch& scratch) {
  const int head_size = static_cast<int>(call.args.head_size);
  pack_transposed(tile.keys, (tile.tokens + 3) / 4 * 4, head_size, scratch.packed_keys);
  multiply<float, kPackedRows, kPackedVectors, false>(scratch.query, call.padded_head, scratch.key_rows,
                                                      padded_to_lanes(tile.tokens), rows, head_size, scratch.scores,
                                                      kTileTokens, nullptr);
}

KVPLAN_INLINE Floats capped(Floats score, float softcap) {
  return softcap * tanh(score * (1.0f / softcap));
}

// Which of the tile's tokens row r sees: [begin, end) within the tile.
struct Seen {
  int begin, end;
};

template <class T>
Seen seen_tokens(const Call& call, const Item& item, const TileRows<T>& tile, int row) {
  const kvplan_attention& args = call.args;
  const int query_len = args.query_starts[item.sequence + 1] - args.query_starts[item.sequence];
  const int64_t position = args.seq_lens[item.sequence] - query_len + item.first_query + row / call.group;
  const int64_t begin = args.window > 0 ? position + 1 - args.window - tile.first : 0;
  const int64_t end = position + 1 - tile.first;
  const int64_t bounded_end = end < tile.tokens ? (end > 0 ? end : 0) : tile.tokens;
  const int64_t bounded_begin = begin > 0 ? (begin < bounded_end ? begin : bounded_end) : 0;
  return {static_cast<int>(bounded_begin), static_cast<int>(bounded_end)};
}

// Softcap, mask, running maximum: one row's scores become exp(score - maximum), its output is rescaled to match.
void update_softmax(const Call& call, const Seen& seen, int tokens, int row, float* scores, Partial& partial) {
  const float kNothing = -INFINITY;
  const int padded = padded_to_lanes(tokens);
  const float softcap = call.args.softcap;
  if (softcap > 0.0f)
    for (int t = 0; t < padded; t += kLanes) store(scores + t, capped(load(scores + t), softcap));
  for (int t = 0; t < seen.begin; ++t) scores[t] = kNothing;
  for (int t = seen.end; t < padded; ++t) scores[t] = kNothing;
  Floats largest = load(scores);
  for (int t = kLanes; t < padded; t += kLanes) largest = maximum(largest, load(scores + t));
  const float before = partial.maximum[row];
  const float here = maximum_of(largest);
  const float after = here > before ? here : before;
  if (seen.begin >= seen.end) {
    for (int t = 0; t < padded; t += kLanes) store(scores + t, Floats{});
    return;
  }
  Floats sums = {};
  for (int t = 0; t < padded; t += kLanes) {
    const Floats weight = exp(load(scores + t) - after);
    store(scores + t, weight);
    sums += weight;
  }
  if (after > before) {
    const float shrink = exp(splat(before - after))[0];
    float* output = partial.output + static_cast<int64_t>(row) * call.padded_head;
    for (int column = 0; column < call.padded_head; column += kLanes)
      store(output + column, load(output + column) * shrink);
    partial.sum[row] *= shrink;
    partial.maximum[row] = after;
  }
  partial.sum[row] += sum_of(sums);
}

template <class T>
void add_values(const Call& call, const TileRows<T>& tile, const TileRows<T>* next, int rows, bool packed,
                Scratch& scratch) {
  const int head_size = static_cast<int>(call.args.head_size);
  float* output = scratch.partial.output;
  if (packed) {
    pack_rows(tile.values, tile.tokens, head_size, call.padded_head, scratch.packed_values);
    multiply<float, kPackedRows, kPackedVectors, true>(scratch.scores, kTileTokens, scratch.value_rows,
                                                       call.padded_head, rows, tile.tokens, output, call.padded_head,
                                                       nullptr);
    return;
  }
  const T* const* ahead = next != nullptr ? next->keys : nullptr;
  multiply<T, kDirectRows, 4, true>(scratch.scores, kTileTokens, tile.values, head_size, rows, tile.tokens, output,
                                    call.padded_head, ahead);
}

template <class T>
void attend_over_cache(const Call& call, const Item& item, Scratch& scratch) {
  const int rows = item.num_queries * call.group;
  const bool packed = rows > kMostDirectRows;
  const int64_t fitting = kDirectTileBytes / (call.args.head_size * static_cast<int64_t>(sizeof(T))) / 4 * 4;
  const int tile_tokens = packed || fitting > kTileTokens ? kTileTokens : (fitting < 16 ? 16 : static_cast<int>(fitting));
  TileRows<T> tiles[2];
  int current = 0;
  find_rows(call, item, item.kv_begin, tile_tokens, tiles[0]);
  while (tiles[current].tokens > 0) {
    TileRows<T>& tile = tiles[current];
    TileRows<T>& next = tiles[1 - current];
    find_rows(call, item, tile.first + tile.tokens, tile_tokens, next);
    if (packed) {
      score_packed(call, tile, rows, scratch);
    } else {
      score_directly(call, tile, rows, scratch);
    }
    for (int r = 0; r < rows; ++r)
      update_softmax(call, seen_tokens(call, item, tile, r), tile.tokens, r, scratch.scores + r * kTileTokens,
                     scratch.partial);
    add_values(call, tile, next.tokens > 0 ? &next : nullptr, rows, packed, scratch);
    current = 1 - current;
  }
}

void clear(const Call& call, int rows, Partial& partial) {
  std::memset(partial.output, 0, sizeof(float) * static_cast<size_t>(rows) * static_cast<size_t>(call.padded_head));
  std::memset(partial.sum, 0, sizeof(float) * static_cast<size_t>(rows));
  for (int r = 0; r < rows; ++r) partial.maximum[r] = -INFINITY;
}

// into += part, both brought to the larger of their maxima.
void merge(const Call& call, int rows, const Partial& part, Partial& into) {
  for (int r = 0; r < rows; ++r) {
    if (part.sum[r] == 0.0f) continue;
    const float highest = part.maximum[r] > into.maximum[r] ? part.maximum[r] : into.maximum[r];
    const float keep = exp(splat(into.maximum[r] - highest))[0];
    const float add = exp(splat(part.maximum[r] - highest))[0];
    float* target = into.output + static_cast<int64_t>(r) * call.padded_head;
    const float* source = part.output + static_cast<int64_t>(r) * call.padded_head;
    for (int column = 0; column < call.padded_head; column += kLanes)
      store(target + column, load(target + column) * keep + load(source + column) * add);
    into.sum[r] = into.sum[r] * keep + part.sum[r] * add;
    into.maximum[r] = highest;
  }
}

void store_item(const Call& call, const Item& item, const Partial& partial) {
  if (call.args.storage == KVPLAN_BFLOAT16) {
    store_output<BFloat16>(call, item, partial);
  } else {
    store_output<float>(call, item, partial);
  }
}

// Everything one call works with, cut from the arena.
struct Workspace {
  Item* items;
  Scratch* workers;              // [threads]
  Partial* parts;                // [plan.max_parts]
  std::atomic<int32_t>* missing;  // [plan.max_parts]: parts still to come, at the index of the first
};

Workspace take_workspace(Cutter& cutter, const Call& call, const Plan& plan, int threads, bool real) {
  Workspace space;
  space.items = cutter.take<Item>(plan.max_items);
  space.workers = cutter.take<Scratch>(threads);
  space.parts = cutter.take<Partial>(plan.max_parts);
  space.missing = cutter.take<std::atomic<int32_t>>(plan.max_parts);
  for (int64_t i = 0; i < threads; ++i) {
    const Scratch scratch = take_scratch(cutter, call);
    if (!real) continue;
    space.workers[i] = scratch;
    point_at_packed_rows(call, space.workers[i]);
  }
  for (int64_t i = 0; i < plan.max_parts; ++i) {
    const Partial part = take_partial(cutter, call);
    if (real) space.parts[i] = part;
  }
  return space;
}

// Keeps the part just computed; the thread that brings the last part merges them in order and writes the output.
void finish_part(const Call& call, const Item& item, Workspace& space) {
  const int rows = item.num_queries * call.group;
  if (space.missing[item.first_part].fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  Partial& total = space.parts[item.first_part];
  for (int i = 1; i < item.num_parts; ++i) merge(call, rows, space.parts[item.first_part + i], total);
  store_item(call, item, total);
}

void run_item(const Call& call, const Item& item, Workspace& space, Scratch scratch) {
  if (item.num_parts > 1) scratch.partial = space.parts[item.part];
  clear(call, item.num_queries * call.group, scratch.partial);
  if (call.args.storage == KVPLAN_BFLOAT16) {
    load_queries<BFloat16>(call, item, scratch.query);
  } else {
    load_queries<float>(call, item, scratch.query);
  }
  if (call.args.kv_storage == KVPLAN_BFLOAT16) {
    attend_over_cache<BFloat16>(call, item, scratch);
  } else {
    attend_over_cache<float>(call, item, scratch);
  }
  if (item.num_parts > 1) {
    finish_part(call, item, space);
  } else {
    store_item(call, item, scratch.partial);
  }
}

}  // namespace

int run_attention(const kvplan_attention& args, int threads) {
  static thread_local Arena arena;
  const Plan plan = plan_attention(args, threads);
  const int group = static_cast<int>(args.num_heads / args.num_kv_heads);
  const Call call{args, group, static_cast<int>(plan.queries_per_item) * group, padded_to_lanes(args.head_size)};
  Cutter measure(nullptr);
  take_workspace(measure, call, plan, threads, false);
  if (!arena.reserve(measure.used())) return KVPLAN_NO_MEMORY;
  Cutter cutter(arena.base());
  Workspace space = take_workspace(cutter, call, plan, threads, true);
  const int64_t num_items = fill_items(args, plan, space.items);
  for (int64_t i = 0; i < num_items; ++i) {
    const Item& item = space.items[i];
    if (item.num_parts > 1 && item.part == item.first_part)
      new (&space.missing[item.first_part]) std::atomic<int32_t>(item.num_parts);
  }
  for_each_item(num_items, threads, [&](int worker, int64_t i) {
    run_item(call, space.items[i], space, space.workers[worker]);
  });
  return KVPLAN_OK;
}

}  // namespace kvplan

int kvplan_paged_attention(const kvplan_attention* args, int threads) {
  const int status = kvplan::check_attention(*args);
  return status == KVPLAN_OK ? kvplan::run_attention(*args, threads > 0 ? threads : 1) : status;
}
