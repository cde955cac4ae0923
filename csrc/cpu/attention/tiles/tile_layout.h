// Which items of attention are computed in AMX's tiles, how their rows lie in them, and what of the cache they read next.
#pragma once

#include "../../amx.h"
#include "../attention_softmax.h"

namespace kvplan {

// Whether attention in tiles is compiled.
#if KVPLAN_AMX && KVPLAN_LANES == 16
#define KVPLAN_TILE_ATTENTION 1
#else
#define KVPLAN_TILE_ATTENTION 0
#endif

// Tokens of a tile of keys or values, as it lies in a block.
constexpr int kUnitTokens = 16;

// Query rows of a KV head from which on tiles are faster than vectors, which fewer rows leave waiting for memory
// (measured: benchmarks/README.md).
constexpr int kLeastTileRows = 5;

// Whether this call's heads, blocks and types are such that items may be computed in tiles.
inline bool suits_tiles(const kvplan_attention& args) {
  if (!KVPLAN_TILE_ATTENTION || args.storage != KVPLAN_BFLOAT16 || args.kv_storage != KVPLAN_BFLOAT16) return false;
  if (args.value_size != args.head_size || args.value_stride != args.head_size) return false;
  if (args.head_size != 64 && args.head_size != 128 && args.head_size != 256) return false;
  return args.block_size % kUnitTokens == 0 && args.chosen == nullptr && tiles_are_used();
}

inline bool takes_tiles(const Call& call, const Item& item) {
  return call.by_tiles && (!item.direct || item.num_queries * call.group >= kLeastTileRows);
}

#if KVPLAN_TILE_ATTENTION

static_assert(kUnitTokens == kTileHeight);
constexpr int kMostUnits = 2;  // looked at together: as many tokens as a tile's row has numbers
constexpr int kWeightParts = 2;
constexpr int kTileFloats = kTileHeight * kTileOutputs;

// The rows of the item that are columns of a tile of scores: which tokens [begin, end) each sees, and its softmax so far.
struct TileColumns {
  Floats highest;
  Ints begin, end;
  Floats slopes, positions;          // of ALiBi
  Floats sums[kTileOutputs];         // of each column: of every sixteenth token
  int32_t weights_at[kTileOutputs];  // of each column: where its row of weights lies
  int32_t last_begin, first_end;     // all columns see [last_begin, first_end)
};

// How the rows of an item lie in tiles: of several heads with few rows each, which share tiles of scores, or of one head with
// many, which fill several.
struct TileLayout {
  int rows, heads;   // query rows of a head
  int heads_beside;  // heads that share a tile of scores
  int columns;       // rows that share one
  int groups;        // tiles of scores
  int row_tiles;     // of a head

  TileLayout(int head_rows, int num_heads) : rows(head_rows), heads(num_heads) {
    heads_beside = rows < kTileOutputs ? kTileOutputs / rows : 1;
    columns = rows < kTileOutputs ? heads_beside * rows : kTileOutputs;
    groups = (heads * rows + columns - 1) / columns;
    row_tiles = (rows + kTileOutputs - 1) / kTileOutputs;
  }

  int tile_rows() const { return rows < kTileOutputs ? rows : kTileOutputs; }

  int count() const { return heads * row_tiles; }

  // The tile that has an item's row.
  int tile_of(int row) const { return row / rows * row_tiles + row % rows / kTileOutputs; }
};

inline TileLayout layout_of(const Call& call, const Item& item) {
  return TileLayout(item_rows(call, item) / item.num_heads, item.num_heads);
}

// A thread's memory for tiles, for items of up to `max_heads` heads with few rows or of one with up to `max_rows`.
inline TileScratch take_tile_scratch(Cutter& cutter, int64_t head_size, int64_t max_heads, int64_t max_rows) {
  const int64_t chunks = head_size / (2 * kTilePairs), row_tiles = (max_rows + kTileOutputs - 1) / kTileOutputs;
  const int64_t tiles = max_heads > row_tiles ? max_heads : row_tiles;
  TileScratch scratch;
  scratch.queries = cutter.take<uint32_t>(tiles * chunks * kTileFloats);
  scratch.scores = cutter.take<float>(tiles * kMostUnits * kTileFloats);
  scratch.weights = cutter.take<uint32_t>(tiles * kWeightParts * kTileFloats);
  scratch.values = cutter.take<uint32_t>(2 * chunks * kTileFloats);
  scratch.products = cutter.take<float>(2 * 2 * chunks * kTileFloats);
  scratch.columns = cutter.take<TileColumns>(tiles);
  return scratch;
}

// Some units of tokens, whose keys and values of the item's first head begin here.
struct TileUnits {
  const BFloat16* keys[kMostUnits];
  const BFloat16* values[kMostUnits];
  int count = 0;
};

inline TileUnits find_units(const Call& call, const Item& item, int first) {
  const kvplan_attention& args = call.args;
  const BlockTables tables = tables_of(args, item.sequence);
  const BFloat16* keys = static_cast<const BFloat16*>(args.keys) + item.first_head * args.block_size * args.head_size;
  const BFloat16* values = static_cast<const BFloat16*>(args.values) + item.first_head * args.block_size * args.head_size;
  TileUnits units;
  for (int position = first; position < item.kv_end && units.count < kMostUnits; position += kUnitTokens) {
    const int64_t block = position / args.block_size, within = position % args.block_size * args.head_size;
    units.keys[units.count] = keys + tables.keys[block] * args.block_stride + within;
    units.values[units.count++] = values + tables.values[block] * args.block_stride + within;
  }
  return units;
}

// The first unit that has tokens of the item.
inline int first_unit(const Item& item) {
  return item.kv_begin / kUnitTokens * kUnitTokens;
}

// Prefetches units head by head, a line of each unit's keys and values in turn.
class UnitsAhead {
 public:
  void begin(const TileUnits& units, int heads, int64_t head_bytes, int64_t head_step) {
    for (int run = 0; run < kRuns; ++run) {
      const int unit = run / 2 < units.count ? run / 2 : 0;
      runs_[run] = reinterpret_cast<const char*>(run % 2 == 0 ? units.keys[unit] : units.values[unit]);
    }
    at_ = 0, heads_left_ = heads, head_bytes_ = head_bytes, head_step_ = head_step;
  }

  void stop() { heads_left_ = 0; }

  KVPLAN_INLINE void ask(int turns) {
    for (int turn = 0; turn < turns && heads_left_ > 0; ++turn) {
#pragma GCC unroll 4
      for (int run = 0; run < kRuns; ++run) __builtin_prefetch(runs_[run] + at_, 0, kAheadCache);
      at_ += 64;
      if (at_ == head_bytes_) next_head();
    }
  }

 private:
  static constexpr int kRuns = 2 * kMostUnits;

  void next_head() {
    for (const char*& run : runs_) run += head_step_;
    at_ = 0, --heads_left_;
  }

  const char* runs_[kRuns] = {};
  int64_t at_ = 0, head_bytes_ = 0, head_step_ = 0;
  int heads_left_ = 0;
};

#endif

}  // namespace kvplan
