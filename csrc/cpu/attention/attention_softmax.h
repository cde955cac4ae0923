// The softmax of an item's rows, tile after tile: which tokens a row sees, its running maximum, and parts put together.
#pragma once

#include <cmath>

#include "attention_work.h"
#include "../simd_math.h"

namespace kvplan {

// Which of the tile's tokens a query token sees: [begin, end) within the tile.
struct Seen {
  int begin, end;
};

inline Seen seen_tokens(const Call& call, const Item& item, int query, int tile_first, int tile_tokens) {
  const kvplan_attention& args = call.args;
  // a shared prefix lies before everybody's newest token, and who has chosen tokens sees them all
  if (item.num_members > 0 || args.chosen != nullptr) return {0, tile_tokens};
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

// One row of one tile: softcap, slope, mask. Returns its largest score.
// scores [padded tokens]
KVPLAN_INLINE float mask_scores(const Call& call, const Seen& seen, const Slope& slope, int padded, float* scores) {
  const float softcap = call.args.softcap;
  if (softcap > 0.0f)
    for (int t = 0; t < padded; t += kLanes) store(scores + t, softcap * tanh(load(scores + t) * (1.0f / softcap)));
  if (slope.slope != 0.0f) add_slope(slope, padded, scores);
  for (int t = 0; t < seen.begin; ++t) scores[t] = -INFINITY;
  for (int t = seen.end; t < padded; ++t) scores[t] = -INFINITY;
  Floats largest = load(scores);
  for (int t = kLanes; t < padded; t += kLanes) largest = maximum(largest, load(scores + t));
  return maximum_of(largest);
}

// What is subtracted from scores: a row that has seen nothing yet has no maximum.
KVPLAN_INLINE Floats subtracted(Floats maximum) {
  return select(maximum == -INFINITY, Floats{}, maximum);
}

// All rows of one tile: their running maxima rise to the tile's, their scores become exp(score - maximum), zero where
// unseen, and scratch.shrink says what their outputs are to be multiplied with before the tile's values are added. No
// branch depends on a score: which rows rise cannot be foreseen. Of `ahead` (or null) lines are asked for meanwhile.
// scratch.scores [rows, kTileTokens]
inline void update_softmax(const Call& call, const Item& item, int first, int tokens, const Scratch& scratch,
                           Ahead* ahead = nullptr) {
  const int padded = padded_to_lanes(tokens), rows = item_rows(call, item);
  const int queries = item.num_members > 0 ? item.num_members : item.num_queries;
  float* highest = scratch.partial.maximum;
  for (int row = 0; row < rows;)
    for (int query = 0; query < queries; ++query) {
      const Seen seen = seen_tokens(call, item, query, first, tokens);
      for (int g = 0; g < call.group; ++g, ++row) {
        const Slope slope = slope_of(call, item, row, first);
        const float here = mask_scores(call, seen, slope, padded, scratch.scores + row * kTileTokens);
        scratch.shrink[row] = highest[row];
        highest[row] = here > highest[row] ? here : highest[row];
      }
    }
  for (int row = 0; row < rows; row += kLanes)
    store(scratch.shrink + row, exp(load(scratch.shrink + row) - subtracted(load(highest + row))));
  for (int row = 0; row < rows; ++row) {
    if (ahead != nullptr) ahead->ask_turn();
    float* scores = scratch.scores + row * kTileTokens;
    float* lanes = scratch.partial.sum + row * kLanes;
    const Floats base = subtracted(splat(highest[row]));
    Floats sums = load(lanes) * scratch.shrink[row];
    for (int t = 0; t < padded; t += kLanes) {
      const Floats weight = exp(load(scores + t) - base);
      store(scores + t, weight);
      sums += weight;
    }
    store(lanes, sums);
  }
}

// into += part, both brought to the larger of their maxima. One whose scores are all NaN has none, and a sum that is NaN.
inline void merge(const Call& call, int rows, Partial& part, Partial& into) {
  for (int r = 0; r < rows; ++r) {
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
