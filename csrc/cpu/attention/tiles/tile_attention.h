// Attention in AMX's tiles, of queries, keys and values in bfloat16: sequences with many query rows for each KV head.
//
// Both products read the cache where it lies, 16 tokens of a head at a time:
//
//   scores   A: keys [16 tokens, 32 numbers]; B: queries [16 pairs of numbers, 16 columns]. A column is a row of the item, or
//            zeros; rows of several heads share the columns where heads have few. Tokens come as rows, and are transposed.
//   outputs  A: weights [16 rows, 32 tokens]; B: values, packed as pairs of tokens [16 pairs, 16 numbers].
//
// A pair is a token of one unit of 16 and the same of the next, so that two vectors of weights make a row of A by a shift. To
// pack values, two rows are unpacked into each other, which leaves the numbers of a row out of order: outputs are kept like
// that until an item ends. Each weight is the sum of two bfloat16 numbers: with one, outputs would be off by a thousandth.
#pragma once

#include "../../simd_transpose.h"
#include "tile_layout.h"

#if KVPLAN_TILE_ATTENTION

namespace kvplan {

// One item. kChunks: tiles of 32 numbers side by side in a head.
template <int kChunks>
class TileAttention {
 public:
  TileAttention(const Call& call, const Item& item, Scratch& scratch)
      : call_(call), args_(call.args), item_(item), scratch_(scratch), tiles_(scratch.tiles), in_(layout_of(call, item)),
        head_step_(call.args.block_size * kWidth) {}

  // find_following(): the item that this thread probably takes next, or null.
  template <class Find>
  void run(const Find& find_following) {
    begin();
    TileUnits units = find_units(call_, item_, first_unit(item_)), next;
    for (int first = first_unit(item_); first < item_.kv_end; first += kMostUnits * kUnitTokens, units = next) {
      const int after = first + kMostUnits * kUnitTokens;
      next = after < item_.kv_end ? find_units(call_, item_, after) : first_of(find_following());
      ahead_.stop();
      if (next.count > 0) ahead_.begin(next, in_.heads, kUnitTokens * kRowBytes, head_step_ * int64_t{sizeof(BFloat16)});
      for (int group = 0; group < in_.groups; ++group) score(units, group);
      for (int group = 0; group < in_.groups; ++group) weigh(units.count, first, group);
      settle(tiles_.weights);
      add_values(units, first);
    }
    KVPLAN_TILE_RELEASE();
    end();
  }

 private:
  static constexpr int kWidth = kChunks * 2 * kTilePairs;
  static constexpr int64_t kRowBytes = kWidth * int64_t{sizeof(BFloat16)};

  // Columns of a tile of scores that are rows: the item's from group * columns on.
  int group_columns(int group) const {
    const int left = in_.heads * in_.rows - group * in_.columns;
    return left < in_.columns ? left : in_.columns;
  }

  void begin() {
    std::memset(tiles_.queries, 0, static_cast<size_t>(in_.count()) * kChunks * kTileFloats * sizeof(uint32_t));
    for (int row = 0; row < in_.heads * in_.rows; ++row) {
      uint32_t pairs[kWidth / 2];
      std::memcpy(pairs, scratch_.query_pairs + row * kWidth, sizeof pairs);
      uint32_t* column = tiles_.queries + in_.tile_of(row) * kChunks * kTileFloats + row % in_.columns;
#pragma GCC unroll 8
      for (int pair = 0; pair < kWidth / 2; ++pair) column[pair * kTileOutputs] = pairs[pair];
    }
    settle(tiles_.queries);
    for (int group = 0; group < in_.groups; ++group) begin_columns(group);
    const int places = in_.count() * 2 * kMostUnits * kChunks + in_.heads * in_.rows;  // of ask()
    turns_ = (in_.heads * kUnitTokens * kChunks + places - 1) / places;
    TileShapes shapes;
    for (int tile = 0; tile < 4; ++tile) shapes.set(tile, kTileHeight);
    for (int tile = 4; tile < 8; ++tile) shapes.set(tile, in_.tile_rows());
    settle(&shapes);
    KVPLAN_TILE_CONFIGURE(&shapes);
  }

  void begin_columns(int group) {
    TileColumns& columns = tiles_.columns[group];
    columns.highest = splat(-INFINITY);
    columns.begin = columns.end = Ints{};
    columns.last_begin = item_.kv_begin, columns.first_end = item_.kv_end;
    for (Floats& sums : columns.sums) sums = Floats{};
    const int query_len = args_.query_starts[item_.sequence + 1] - args_.query_starts[item_.sequence];
    for (int c = 0; c < group_columns(group); ++c) {
      const int row = group * in_.columns + c;
      const int64_t position = args_.seq_lens[item_.sequence] - query_len + item_.first_query + row % in_.rows / call_.group;
      const bool sees_all = item_.num_members > 0;  // a shared prefix lies before everybody's newest token
      const int64_t begin = args_.window > 0 && !sees_all ? position + 1 - args_.window : 0;
      columns.begin[c] = static_cast<int32_t>(begin > item_.kv_begin ? begin : item_.kv_begin);
      columns.end[c] = static_cast<int32_t>(position < item_.kv_end && !sees_all ? position + 1 : item_.kv_end);
      if (columns.begin[c] > columns.last_begin) columns.last_begin = columns.begin[c];
      if (columns.end[c] < columns.first_end) columns.first_end = columns.end[c];
      columns.weights_at[c] = (in_.tile_of(row) * kWeightParts * kTileHeight + row % in_.rows % kTileHeight) * kTileOutputs;
      if (args_.slopes == nullptr) continue;
      const Slope slope = slope_of(call_, item_, row, 0);
      columns.slopes[c] = slope.slope;
      columns.positions[c] = static_cast<float>(-slope.first);
    }
  }

  TileUnits first_of(const Item* following) const {
    if (following == nullptr || following->num_heads != in_.heads || !takes_tiles(call_, *following)) return {};
    return find_units(call_, *following, first_unit(*following));
  }

  KVPLAN_INLINE void score_chunks(const BFloat16* keys, const uint32_t* queries) {
#pragma GCC unroll 4
    for (int chunk = 0; chunk < kChunks; chunk += 2) {
      ahead_.ask(turns_);
      KVPLAN_TILE_LOAD(1, keys + chunk * 2 * kTilePairs, kRowBytes);
      KVPLAN_TILE_LOAD(2, queries + chunk * kTileFloats, kTileBytes);
      KVPLAN_TILE_MULTIPLY(0, 1, 2);
      ahead_.ask(turns_);
      KVPLAN_TILE_LOAD(3, keys + (chunk + 1) * 2 * kTilePairs, kRowBytes);
      KVPLAN_TILE_LOAD(2, queries + (chunk + 1) * kTileFloats, kTileBytes);
      KVPLAN_TILE_MULTIPLY(0, 3, 2);
    }
  }

  // A tile of scores for each unit: [token, column].
  void score(const TileUnits& units, int group) {
    const int first_head = group / in_.row_tiles * in_.heads_beside;
    const int last_head = first_head + in_.heads_beside < in_.heads ? first_head + in_.heads_beside : in_.heads;
    float* scores = tiles_.scores + group * kMostUnits * kTileFloats;
    for (int unit = 0; unit < units.count; ++unit) {
      KVPLAN_TILE_ZERO(0);
      for (int head = first_head; head < last_head; ++head) {
        const int tile = in_.row_tiles == 1 ? head : group;
        score_chunks(units.keys[unit] + head * head_step_, tiles_.queries + tile * kChunks * kTileFloats);
      }
      KVPLAN_TILE_STORE(0, scores + unit * kTileFloats, kTileBytes);
    }
    settle(scores);
  }

  // Scores of one unit from [token, column] to [column, token], masked. Their largest by column. Where there is more to be
  // done than scaling, it is done here; else they stay unscaled (score_scale).
  Floats turn_scores(float* scores, const TileColumns& columns, int first, bool masked) {
    Floats rows[kTileOutputs];
#pragma GCC unroll 16
    for (int t = 0; t < kUnitTokens; ++t) rows[t] = load(scores + t * kTileOutputs);
    if (args_.softcap > 0.0f)
      for (Floats& row : rows) row = args_.softcap * tanh(row * (args_.scale / args_.softcap));
    if (args_.slopes != nullptr)
      for (int t = 0; t < kUnitTokens; ++t)
        rows[t] = rows[t] * (args_.softcap > 0.0f ? 1.0f : args_.scale) +
                  columns.slopes * (static_cast<float>(first + t) - columns.positions);
    if (masked)
      for (int t = 0; t < kUnitTokens; ++t)
        rows[t] = select((columns.begin > first + t) | (columns.end <= first + t), splat(-INFINITY), rows[t]);
    Floats largest[kUnitTokens / 2];
#pragma GCC unroll 8
    for (int t = 0; t < 8; ++t) largest[t] = maximum(rows[t], rows[t + 8]);
#pragma GCC unroll 4
    for (int t = 0; t < 4; ++t) largest[t] = maximum(largest[t], largest[t + 4]);
    transpose(rows);
#pragma GCC unroll 16
    for (int c = 0; c < kTileOutputs; ++c) store(scores + c * kUnitTokens, rows[c]);
    return maximum(maximum(largest[0], largest[2]), maximum(largest[1], largest[3]));
  }

  // What the scores that turn_scores leaves are to be multiplied with.
  float score_scale() const { return args_.softcap > 0.0f || args_.slopes != nullptr ? 1.0f : args_.scale; }

  // A row of both units' weights, in both parts.
  static KVPLAN_INLINE void store_weights(Floats one, Floats other, uint32_t* row) {
    const Words ones = reinterpret_cast<Words>(one) & 0xffff0000u, others = reinterpret_cast<Words>(other) & 0xffff0000u;
    const Words upper = ones >> 16 | others;
    const Words one_left = reinterpret_cast<Words>(one - reinterpret_cast<Floats>(ones)) + 0x8000u;
    const Words other_left = reinterpret_cast<Words>(other - reinterpret_cast<Floats>(others)) + 0x8000u;
    const Words lower = one_left >> 16 | (other_left & 0xffff0000u);
    std::memcpy(row, &upper, sizeof upper);
    std::memcpy(row + kTileFloats, &lower, sizeof lower);
  }

  // Brings the columns' maxima and sums up to date and makes weights of their scores.
  void weigh(int units, int first, int group) {
    TileColumns& columns = tiles_.columns[group];
    const int count = group_columns(group);
    float* scores = tiles_.scores + group * kMostUnits * kTileFloats;
    const bool masked = first < columns.last_begin || first + units * kUnitTokens > columns.first_end;
    Floats highest = columns.highest;
    for (int unit = 0; unit < units; ++unit)
      highest = maximum(turn_scores(scores + unit * kTileFloats, columns, first + unit * kUnitTokens, masked), highest);
    const float scale = score_scale() * 1.44269504f;  // e^x is 2^(x log2 e)
    const Floats base = subtracted(highest) * scale;
    float* shrink = scratch_.shrink + group * in_.columns;
    store(shrink, exp2_of_negative(columns.highest * scale - base));
    columns.highest = highest;
    float bases[kTileOutputs];
    store(bases, base);
    for (int c = 0; c < count; ++c) {
      ahead_.ask(turns_);
      const float* row = scores + c * kUnitTokens;
      const Floats one = exp2_of_negative(load(row) * scale - bases[c]);
      const Floats other = units < 2 ? Floats{} : exp2_of_negative(load(row + kTileFloats) * scale - bases[c]);
      columns.sums[c] = columns.sums[c] * shrink[c] + (one + other);
      store_weights(one, other, tiles_.weights + columns.weights_at[c]);
    }
  }

  // Outputs += weights x values, for every tile of rows; what the tiles give is added one later, when it has arrived.
  void add_values(const TileUnits& units, int first) {
    int head_before = -1, tile_before = 0;
    for (int head = 0; head < in_.heads; ++head) {
      pack_values(units, head, first);
      for (int tile = 0; tile < in_.row_tiles; ++tile) {
        multiply_values(head * in_.row_tiles + tile);
        if (head_before >= 0) add_products(head_before, tile_before);
        head_before = head, tile_before = tile;
      }
    }
    add_products(head_before, tile_before);
  }

  // A head's values as pairs of tokens, zeros for those that the item does not have: what lies there may be anything.
  KVPLAN_INLINE void pack_values(const TileUnits& units, int head, int first) {
    const BFloat16* ones = units.values[0] + head * head_step_;
    const BFloat16* others = units.count < 2 ? ones : units.values[1] + head * head_step_;
    const int begin = item_.kv_begin - first, end = item_.kv_end - first;
    const bool whole = begin <= 0 && end >= kMostUnits * kUnitTokens;
    for (int token = 0; token < kUnitTokens; ++token) {
      const int second = token + kUnitTokens;
      const bool has_one = whole || (token >= begin && token < end), has_other = whole || (second >= begin && second < end);
      uint32_t* row = tiles_.values + token * kTileOutputs;
#pragma GCC unroll 8
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        const int64_t at = token * kWidth + chunk * 2 * kTilePairs;
        const Words one = has_one ? load_words(ones + at) : Words{}, other = has_other ? load_words(others + at) : Words{};
        unpack_halves(one, other, row + 2 * chunk * kTileFloats, row + (2 * chunk + 1) * kTileFloats);
      }
    }
    settle(tiles_.values);
  }

  float* products_of(int tile) const { return tiles_.products + tile % 2 * 2 * kChunks * kTileFloats; }

  KVPLAN_INLINE void multiply_values(int tile) {
    const uint32_t* weights = tiles_.weights + tile * kWeightParts * kTileFloats;
    float* products = products_of(tile);
    KVPLAN_TILE_LOAD(4, weights, kTileBytes);
    KVPLAN_TILE_LOAD(5, weights + kTileFloats, kTileBytes);
#pragma GCC unroll 8
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const uint32_t* values = tiles_.values + 2 * chunk * kTileFloats;
      ahead_.ask(turns_);
      KVPLAN_TILE_ZERO(6);
      KVPLAN_TILE_LOAD(1, values, kTileBytes);
      KVPLAN_TILE_MULTIPLY(6, 4, 1);
      ahead_.ask(turns_);
      KVPLAN_TILE_ZERO(7);
      KVPLAN_TILE_LOAD(2, values + kTileFloats, kTileBytes);
      KVPLAN_TILE_MULTIPLY(7, 4, 2);
      KVPLAN_TILE_MULTIPLY(6, 5, 1);
      KVPLAN_TILE_MULTIPLY(7, 5, 2);
      KVPLAN_TILE_STORE(6, products + 2 * chunk * kTileFloats, kTileBytes);
      KVPLAN_TILE_STORE(7, products + (2 * chunk + 1) * kTileFloats, kTileBytes);
    }
    settle(products);
  }

  KVPLAN_INLINE void add_products(int head, int tile) {
    const float* products = products_of(head * in_.row_tiles + tile);
    const int first = tile * kTileHeight, left = in_.rows - first;
    for (int r = 0; r < (left < kTileHeight ? left : kTileHeight); ++r) {
      const int row = head * in_.rows + first + r;
      const float shrink = scratch_.shrink[row];
      float* output = scratch_.partial.output + row * kWidth;
#pragma GCC unroll 16
      for (int i = 0; i < 2 * kChunks; ++i, output += kLanes)
        store(output, load(output) * shrink + load(products + i * kTileFloats + r * kTileOutputs));
    }
  }

  // The item's result as all ways leave it.
  void end() {
    for (int row = 0; row < in_.heads * in_.rows; ++row) {
      const TileColumns& columns = tiles_.columns[row / in_.columns];
      const int c = row % in_.columns;
      scratch_.partial.maximum[row] = columns.highest[c] * score_scale();
      store(scratch_.partial.sum + row * kLanes, columns.sums[c]);
      float* output = scratch_.partial.output + row * kWidth;
      for (int chunk = 0; chunk < kChunks; ++chunk, output += 2 * kTilePairs) mend_halves(output);
    }
  }

  const Call& call_;
  const kvplan_attention& args_;
  const Item& item_;
  Scratch& scratch_;
  const TileScratch& tiles_;
  const TileLayout in_;
  const int64_t head_step_;  // elements from head to head, of keys and of values
  UnitsAhead ahead_;
  int turns_ = 0;  // asked for in each of many places, such that all of the next units are
};

template <class Find>
void attend_in_tiles(const Call& call, const Item& item, const Find& find_following, Scratch& scratch) {
  if (call.args.head_size == 64) {
    TileAttention<2>(call, item, scratch).run(find_following);
  } else if (call.args.head_size == 128) {
    TileAttention<4>(call, item, scratch).run(find_following);
  } else {
    TileAttention<8>(call, item, scratch).run(find_following);
  }
}

}  // namespace kvplan

#endif
