// Few query rows per KV head (decode): the cache is read where it lies, once, in the order in which it lies.
//
// Within a block, a layer's keys of all heads follow each other, then its values. So a tile is one block, all heads of
// the item take their scores from it, then all take its values: the processor sees one long run of addresses, which it
// fetches faster than runs of one head (plain reads of 384 MiB in random runs, one core of a 2-core AMD EPYC VM,
// 2026-11: runs of 4 KiB 7 GB/s, of 24 KiB 12, of 96 KiB 20). The loops here read rows in fours and values by columns,
// which hides that order from the processor, so each head's step asks for what is read later (look_ahead).
#pragma once

#include <type_traits>

#include "attention_softmax.h"

namespace kvplan {

// Up to this many query rows per KV head, summing each score across lanes is cheaper than transposing the keys.
constexpr int kMostDirectRows = 10;

// Tokens per tile: a block, or several small ones, or a part of a large one.
inline int direct_tile_tokens(int64_t block_size) {
  constexpr int64_t kLeast = 16;
  if (block_size >= kTileTokens) return kTileTokens;
  return static_cast<int>(block_size >= kLeast ? block_size : kLeast / block_size * block_size);
}

// As many lines as so many bytes have.
KVPLAN_INLINE void ask_turns(Ahead& ahead, int bytes) {
  for (int at = 0; at < bytes; at += 64 * Ahead::kTurnLines) ahead.ask_turn();
}

// scores[r][t] of one head's rows and all the tile's tokens, whose keys lie `offset` behind the tile's pointers.
template <class T, int kRows>
KVPLAN_INLINE void score_rows(const Call& call, const TileRows<T>& tile, int64_t offset, const float* query, int rows,
                              float* scores, Ahead* ahead) {
  const int head_size = static_cast<int>(call.args.head_size);
  int r = 0;
  for (; r + kRows <= rows; r += kRows)
    for (int t = 0; t < tile.tokens; t += 4) {
      if (r == 0 && ahead != nullptr) ask_turns(*ahead, 4 * head_size * static_cast<int>(sizeof(T)));
      score_four_tokens<T, kRows>(query + r * call.padded_head, call.padded_head, tile.keys + t, offset, head_size,
                                  scores + r * kTileTokens + t, kTileTokens);
    }
  if constexpr (kRows > 1) {
    if (r < rows)
      score_rows<T, kRows - 1>(call, tile, offset, query + r * call.padded_head, rows - r, scores + r * kTileTokens,
                               r == 0 ? ahead : nullptr);
  }
}

#if KVPLAN_PAIR_DOT

// The same by pairs.
template <int kRows>
KVPLAN_INLINE void score_rows_by_pairs(const Call& call, const TileRows<BFloat16>& tile, int64_t offset,
                                       const BFloat16* query, int rows, float* scores, Ahead* ahead) {
  const int head_size = static_cast<int>(call.args.head_size);
  const int64_t query_stride = padded_to_pairs(head_size);
  int r = 0;
  for (; r + kRows <= rows; r += kRows)
    for (int t = 0; t < tile.tokens; t += 4) {
      if (r == 0 && ahead != nullptr) ask_turns(*ahead, 4 * head_size * static_cast<int>(sizeof(BFloat16)));
      score_four_tokens_by_pairs<kRows>(query + r * query_stride, query_stride, tile.keys + t, offset, head_size,
                                        call.args.scale, scores + r * kTileTokens + t, kTileTokens);
    }
  if constexpr (kRows > 1) {
    if (r < rows)
      score_rows_by_pairs<kRows - 1>(call, tile, offset, query + r * query_stride, rows - r, scores + r * kTileTokens,
                                     r == 0 ? ahead : nullptr);
  }
}

#endif

// Scores of kRows rows, or of `rows`, and all the tile's tokens, whose keys lie side by side from `keys` on. Lines are asked
// for in small turns, over all rows: a burst of them would keep loads waiting.
// query [rows, kHead]; scores [rows, kTileTokens]
template <class T, int kHead, int kRows>
KVPLAN_INLINE void score_runs(const T* query, const T* keys, int tokens, int rows, float scale, float* scores,
                              Ahead* ahead) {
  constexpr int kTurns = kLanes * kHead * static_cast<int>(sizeof(T)) / (64 * Ahead::kTurnLines);
  constexpr int kRowTurns = kTurns > kRows ? (kTurns + kRows / 2) / kRows : 1;
  for (int t = 0; t < tokens; t += kLanes)
    for (int r = 0; r < rows; ++r)
      score_run<T, kHead, kRowTurns>(query + r * kHead, keys + t * kHead, scale, scores + r * kTileTokens + t, *ahead);
}

// The same: as many turns as suit the rows.
template <class T, int kHead>
KVPLAN_INLINE void score_runs(const T* query, const T* keys, int tokens, int rows, float scale, float* scores,
                              Ahead* ahead) {
  if (rows == 1) {
    score_runs<T, kHead, 1>(query, keys, tokens, 1, scale, scores, ahead);
  } else if (rows <= 3) {
    score_runs<T, kHead, 3>(query, keys, tokens, rows, scale, scores, ahead);
  } else {
    score_runs<T, kHead, 8>(query, keys, tokens, rows, scale, scores, ahead);
  }
}

// The same for heads of the usual sizes. False, and nothing written, where the tokens lie apart or heads have others.
template <class T>
KVPLAN_INLINE bool score_in_runs(const Call& call, const TileRows<T>& tile, int64_t offset, const T* query, int rows,
                                 float scale, float* scores, Ahead* ahead) {
  if (!tile.side_by_side) return false;
  const T* keys = tile.keys[0] + offset;
  if (call.args.head_size == 64) {
    score_runs<T, 64>(query, keys, tile.tokens, rows, scale, scores, ahead);
  } else if (call.args.head_size == 128) {
    score_runs<T, 128>(query, keys, tile.tokens, rows, scale, scores, ahead);
  } else {
    return false;
  }
  return true;
}

// Scores of one head's `rows` rows, the item's from `first_row` on, and all the tile's tokens.
template <class T>
KVPLAN_INLINE void score_head(const Call& call, const TileRows<T>& tile, int64_t offset, int first_row, int rows,
                              Scratch& scratch, Ahead* ahead) {
  float* scores = scratch.scores + first_row * kTileTokens;
#if KVPLAN_PAIR_DOT
  if constexpr (std::is_same_v<T, BFloat16>) {
    if (call.by_pairs) {
      const BFloat16* query = scratch.query_pairs + first_row * padded_to_pairs(call.args.head_size);
      if (score_in_runs(call, tile, offset, query, rows, call.args.scale, scores, ahead)) return;
      score_rows_by_pairs<kDirectRows>(call, tile, offset, query, rows, scores, ahead);
      return;
    }
  }
#endif
  const float* query = scratch.query + first_row * call.padded_head;
  if constexpr (std::is_same_v<T, float>) {
    if (score_in_runs(call, tile, offset, query, rows, 1.0f, scores, ahead)) return;  // queries are scaled
  }
  score_rows<T, kDirectRows>(call, tile, offset, query, rows, scores, ahead);
}

// Where the steps of a tile lie: a step is one head's keys, or its values, and all heads' keys come first.
template <class T>
struct TileSteps {
  int heads;
  int64_t key_step, value_step;  // elements from head to head
  int64_t token_bytes;           // of one head's key

  int count() const { return 2 * heads; }

  Pieces pieces(const TileRows<T>& tile) const {
    constexpr int64_t kSize = sizeof(T);
    return {reinterpret_cast<const char*>(tile.keys[0]), reinterpret_cast<const char*>(tile.values[0]),
            key_step * kSize, value_step * kSize, heads, count(), tile.tokens * token_bytes};
  }
};

// How far steps are asked for where they are in the order of addresses: not beyond the next tile, which with one head has
// two.
constexpr int kStepsAhead = 4;

template <class T>
int steps_ahead(const TileSteps<T>& steps) {
  return steps.count() < kStepsAhead ? steps.count() : kStepsAhead;
}

// What is asked for at a step of `tile`: where one run is read, the step of it or of `next` (null: no more) that comes so
// many later; where several are, from the first step on, all of the next tile in runs that lie far apart.
template <class T>
KVPLAN_INLINE void look_ahead(const TileSteps<T>& steps, const TileRows<T>& tile, const TileRows<T>* next, int step,
                              Ahead& ahead) {
  const int count = steps.count();
  if constexpr (kAheadRuns == 1) {
    const int wanted = step + steps_ahead(steps);
    ahead.stop();
    if (wanted >= count && (next == nullptr || wanted >= 2 * count)) return;
    const Pieces pieces = steps.pieces(wanted < count ? tile : *next);
    ahead.begin(pieces.start(wanted % count), pieces.bytes);
  } else if (step == 0) {
    ahead.stop();
    if (next != nullptr) ahead.begin(steps.pieces(*next));
  }
}

// Looks up the tile that this thread probably reads after an item's last one: the first of the item that is next, if that
// is read in the same way. False: there is none.
template <class T>
bool find_first_rows(const Call& call, const Item& item, const Item* following, int tile_tokens, TileRows<T>& rows) {
  if (following == nullptr || !following->direct || following->num_heads != item.num_heads) return false;
  find_rows(call, *following, following->kv_begin, tile_tokens - following->kv_begin % tile_tokens, rows);
  return true;
}

// find_following(): the item that this thread probably takes next, or null.
template <class T, class Find>
void attend_directly(const Call& call, const Item& item, const Find& find_following, Scratch& scratch) {
  const int head_size = static_cast<int>(call.args.head_size);
  const int value_size = static_cast<int>(call.args.value_size);
  const int64_t key_step = call.args.block_size * call.args.head_size;
  const int64_t value_step = call.args.block_size * call.args.value_stride;
  const int rows = item.num_queries * call.group;
  const int tile_tokens = direct_tile_tokens(call.args.block_size);
  TileRows<T> tiles[2];
  int current = 0;
  find_rows(call, item, item.kv_begin, tile_tokens - item.kv_begin % tile_tokens, tiles[0]);
  const TileSteps<T> steps{item.num_heads, key_step, value_step, head_size * int64_t{sizeof(T)}};
  Ahead ahead;
  const Pieces nearest = steps.pieces(tiles[0]);
  for (int step = 0; step < steps_ahead(steps); ++step) prefetch_near(nearest.start(step), nearest.bytes);
  for (int first = item.kv_begin; first < item.kv_end; first += tiles[1 - current].tokens) {
    const TileRows<T>& tile = tiles[current];
    TileRows<T>* next = &tiles[1 - current];
    current = 1 - current;
    const int after = first + tile.tokens;
    if (after < item.kv_end) {
      find_rows(call, item, after, tile_tokens - after % tile_tokens, *next);
    } else if (!find_first_rows(call, item, find_following(), tile_tokens, *next)) {
      next = nullptr;
    }
    for (int head = 0; head < item.num_heads; ++head) {
      look_ahead(steps, tile, next, head, ahead);
      score_head(call, tile, head * key_step, head * rows, rows, scratch, &ahead);
      if constexpr (kHasScales<T>)
        multiply_scales(tile.key_scales, head * call.args.block_size, rows, tile.tokens,
                        scratch.scores + head * rows * kTileTokens);
    }
    update_softmax(call, item, first, tile.tokens, scratch, &ahead);
    for (int head = 0; head < item.num_heads; ++head) {
      look_ahead(steps, tile, next, item.num_heads + head, ahead);
      if constexpr (kHasScales<T>)
        multiply_scales(tile.value_scales, head * call.args.block_size, rows, tile.tokens,
                        scratch.scores + head * rows * kTileTokens);
      multiply<T, kDirectRows, 4, true>(scratch.scores + head * rows * kTileTokens, kTileTokens, tile.values,
                                        head * value_step, value_size, rows, tile.tokens,
                                        scratch.partial.output + head * rows * call.padded_value, call.padded_value,
                                        scratch.shrink + head * rows, &ahead);
    }
  }
}

}  // namespace kvplan
