#include "packed_amx.h"

#include <vector>

#include "../ahead.h"

#if KVPLAN_AMX

namespace kvplan {
namespace {

// Tiles' inputs of a step of a panel, for one group of rows and for several: 12 and 24 KiB.
constexpr int64_t kStepTiles = 3, kStepTilesOfGroups = 6;

static_assert(kPairedTileRows <= kTileHeight);

// Some inputs of some rows and of a panel, where tiles read them: in place, or the last few copied beside zeros.
struct TileInputs {
  const BFloat16* x;  // of the first row
  int64_t x_bytes;    // from row to row
  const BFloat16* panel;
};

// What is left when inputs do not fill a tile.
struct Rest {
  alignas(64) BFloat16 x[2 * kTileHeight * kTileInputs];
  alignas(64) BFloat16 panel[kTilePairs * 2 * kPanelOutputs];

  // The last `inputs` of rows x_stride elements apart and of a panel.
  TileInputs filled(const BFloat16* rows_x, int64_t x_stride, const BFloat16* from_panel, int64_t rows, int64_t inputs) {
    const size_t row_bytes = static_cast<size_t>(inputs) * sizeof(BFloat16);
    std::memset(x, 0, sizeof x);
    std::memset(panel, 0, sizeof panel);
    for (int64_t r = 0; r < rows; ++r) std::memcpy(x + r * kTileInputs, rows_x + r * x_stride, row_bytes);
    std::memcpy(panel, from_panel, row_bytes * kPanelOutputs);
    settle(x);
    settle(panel);
    return {x, kTileInputs * int64_t{sizeof(BFloat16)}, panel};
  }
};

KVPLAN_INLINE const BFloat16* quarter(const BFloat16* panel, int index) {
  return panel + index * 2 * kTileOutputs;
}

// The four tiles of sums, whichever way rows are taken.
KVPLAN_INLINE void zero_sums() {
  KVPLAN_TILE_ZERO(0);
  KVPLAN_TILE_ZERO(1);
  KVPLAN_TILE_ZERO(2);
  KVPLAN_TILE_ZERO(3);
}

// Up to 16 rows: sums in tiles 0 to 3, x in 4, weights in 5 to 7 by turns, so that none is loaded while it is multiplied.
struct OneTileOfRows {
  static void configure(int64_t rows) {
    TileShapes shapes;
    for (int tile = 0; tile < 5; ++tile) shapes.set(tile, static_cast<int>(rows));
    for (int tile = 5; tile < 8; ++tile) shapes.set(tile, kTilePairs);
    settle(&shapes);
    KVPLAN_TILE_CONFIGURE(&shapes);
  }

  KVPLAN_INLINE static void begin(float* sums, bool starts, int = 0, int64_t = 0) {
    if (starts) return zero_sums();
    settle(sums);
    KVPLAN_TILE_LOAD(0, sums, kSumsRowBytes);
    KVPLAN_TILE_LOAD(1, sums + kTileOutputs, kSumsRowBytes);
    KVPLAN_TILE_LOAD(2, sums + 2 * kTileOutputs, kSumsRowBytes);
    KVPLAN_TILE_LOAD(3, sums + 3 * kTileOutputs, kSumsRowBytes);
  }

  KVPLAN_INLINE static void multiply(const TileInputs& in, Ahead& ahead, int lines, int = 0, int64_t = 0) {
    KVPLAN_TILE_LOAD(4, in.x, in.x_bytes);
    ahead.ask(lines);
    KVPLAN_TILE_LOAD(5, quarter(in.panel, 0), kPanelRowBytes);
    KVPLAN_TILE_MULTIPLY(0, 4, 5);
    ahead.ask(lines);
    KVPLAN_TILE_LOAD(6, quarter(in.panel, 1), kPanelRowBytes);
    KVPLAN_TILE_MULTIPLY(1, 4, 6);
    ahead.ask(lines);
    KVPLAN_TILE_LOAD(7, quarter(in.panel, 2), kPanelRowBytes);
    KVPLAN_TILE_MULTIPLY(2, 4, 7);
    ahead.ask(lines);
    KVPLAN_TILE_LOAD(5, quarter(in.panel, 3), kPanelRowBytes);
    KVPLAN_TILE_MULTIPLY(3, 4, 5);
  }

  KVPLAN_INLINE static void end(float* sums, int = 0, int64_t = 0) {
    KVPLAN_TILE_STORE(0, sums, kSumsRowBytes);
    KVPLAN_TILE_STORE(1, sums + kTileOutputs, kSumsRowBytes);
    KVPLAN_TILE_STORE(2, sums + 2 * kTileOutputs, kSumsRowBytes);
    KVPLAN_TILE_STORE(3, sums + 3 * kTileOutputs, kSumsRowBytes);
  }
};

// 17 to 32 rows, the outputs of two quarters: sums in tiles 0 to 3, x in 4 and 5, weights in 6 and 7. `upper`: rows of
// the first tile.
struct TwoTilesOfRows {
  static void configure(int64_t rows) {
    TileShapes shapes;
    const int upper = static_cast<int>((rows + 1) / 2), lower = static_cast<int>(rows / 2);
    for (int tile : {0, 1, 4}) shapes.set(tile, upper);
    for (int tile : {2, 3, 5}) shapes.set(tile, lower);
    for (int tile : {6, 7}) shapes.set(tile, kTilePairs);
    settle(&shapes);
    KVPLAN_TILE_CONFIGURE(&shapes);
  }

  KVPLAN_INLINE static void begin(float* sums, bool starts, int first, int64_t upper) {
    if (starts) return zero_sums();
    settle(sums);
    float* const one = sums + first * kTileOutputs;
    float* const other = one + upper * kPanelOutputs;
    KVPLAN_TILE_LOAD(0, one, kSumsRowBytes);
    KVPLAN_TILE_LOAD(1, one + kTileOutputs, kSumsRowBytes);
    KVPLAN_TILE_LOAD(2, other, kSumsRowBytes);
    KVPLAN_TILE_LOAD(3, other + kTileOutputs, kSumsRowBytes);
  }

  KVPLAN_INLINE static void multiply(const TileInputs& in, Ahead& ahead, int lines, int first, int64_t upper) {
    ahead.ask(lines);
    KVPLAN_TILE_LOAD(4, in.x, in.x_bytes);
    ahead.ask(lines);
    KVPLAN_TILE_LOAD(6, quarter(in.panel, first), kPanelRowBytes);
    KVPLAN_TILE_MULTIPLY(0, 4, 6);
    ahead.ask(lines);
    KVPLAN_TILE_LOAD(5, reinterpret_cast<const char*>(in.x) + upper * in.x_bytes, in.x_bytes);
    KVPLAN_TILE_MULTIPLY(2, 5, 6);
    ahead.ask(lines);
    KVPLAN_TILE_LOAD(7, quarter(in.panel, first + 1), kPanelRowBytes);
    KVPLAN_TILE_MULTIPLY(1, 4, 7);
    KVPLAN_TILE_MULTIPLY(3, 5, 7);
  }

  KVPLAN_INLINE static void end(float* sums, int first, int64_t upper) {
    float* const one = sums + first * kTileOutputs;
    float* const other = one + upper * kPanelOutputs;
    KVPLAN_TILE_STORE(0, one, kSumsRowBytes);
    KVPLAN_TILE_STORE(1, one + kTileOutputs, kSumsRowBytes);
    KVPLAN_TILE_STORE(2, other, kSumsRowBytes);
    KVPLAN_TILE_STORE(3, other + kTileOutputs, kSumsRowBytes);
  }
};

// Rows that tiles multiply together, and some inputs of one panel. Passed on by value: what has just been stored piece by
// piece and is then read as a whole would wait for the stores before it, and those wait for the tiles.
struct RowGroup {
  const BFloat16* x;
  int64_t x_stride, rows;
  const BFloat16* panel;
  int64_t depth;  // inputs
  float* sums;    // [rows, kPanelOutputs]
  bool starts;    // the sums begin here
};

// Sums of `kQuarters` quarters of the panel at a time, over all of the step's inputs. `lines` of what is needed next are
// asked for beside each of the four loads of a turn.
template <class Group, int kQuarters>
KVPLAN_INLINE void run_group(const RowGroup step, Ahead& ahead, int lines) {
  const int64_t whole = step.depth / kTileInputs, left = step.depth % kTileInputs, upper = (step.rows + 1) / 2;
  const int64_t x_bytes = step.x_stride * int64_t{sizeof(BFloat16)};
  Rest rest;
  TileInputs last{};
  if (left > 0) {
    const int64_t begin = whole * kTileInputs;
    last = rest.filled(step.x + begin, step.x_stride, step.panel + begin * kPanelOutputs, step.rows, left);
  }
  for (int first = 0; first < 4; first += kQuarters) {
    Group::begin(step.sums, step.starts, first, upper);
    for (int64_t begin = 0; begin < whole * kTileInputs; begin += kTileInputs)
      Group::multiply({step.x + begin, x_bytes, step.panel + begin * kPanelOutputs}, ahead, lines, first, upper);
    if (left > 0) Group::multiply(last, ahead, lines, first, upper);
    Group::end(step.sums, first, upper);
  }
}

// Configures tiles for so many rows, unless they are: that costs as much as multiplying a few kilobytes of weights.
template <class Group>
KVPLAN_INLINE void configure(int64_t rows, ConfiguredTiles& tiles) {
  if (tiles.rows == rows) return;
  Group::configure(rows);
  tiles.rows = rows;
}

// Up to a tile's height of rows: a panel's weights pass by once, in the order in which they lie, and its sums stay in
// tiles. Then the processor's own prefetching is ahead of any that a program asks for (measured: benchmarks/README.md).
void run_few_rows(const PackedProduct<BFloat16>& product, const BFloat16* panel, float* sums, ConfiguredTiles& tiles) {
  configure<OneTileOfRows>(product.rows, tiles);
  const int64_t inputs = packed_inputs<BFloat16>(product.inputs);
  Ahead nothing;
  run_group<OneTileOfRows, 4>({product.x, product.x_stride, product.rows, panel, inputs, sums, true}, nothing, 0);
}

// The same for two panels in turn, a tile's inputs of each, while what both read at the next turn is asked for: one core has
// more lines on their way from two runs of memory than from one, and most where it asks for a few at a time. Sums of few
// rows are soon stored and loaded. has_next: two more panels follow.
void run_few_rows_of_two(const PackedProduct<BFloat16>& product, const BFloat16* panel, bool has_next, float* sums,
                         ConfiguredTiles& tiles) {
  configure<OneTileOfRows>(product.rows, tiles);
  constexpr int64_t kTurn = kTileInputs * kPanelOutputs, kTurnBytes = kTurn * int64_t{sizeof(BFloat16)};
  constexpr int kLines = 2 * kTurnBytes / 64 / (2 * 4);  // at each of four loads of two turns
  const int64_t inputs = packed_inputs<BFloat16>(product.inputs), stride = inputs * kPanelOutputs;
  const int64_t x_bytes = product.x_stride * int64_t{sizeof(BFloat16)};
  for (int64_t begin = 0; begin < inputs; begin += kTileInputs) {
    const BFloat16* const weights = panel + begin * kPanelOutputs;
    const bool ends = begin + kTileInputs >= inputs;
    Ahead ahead;
    if (!ends || has_next) ahead.begin(kTurnBytes);
    for (int64_t c = 0; c < 2; ++c)
      ahead.add(reinterpret_cast<const char*>(ends ? panel + (2 + c) * stride : weights + c * stride + kTurn));
    for (int64_t c = 0; c < 2; ++c) {
      OneTileOfRows::begin(sums + c * kPanelSums, begin == 0);
      if (begin + kTileInputs <= inputs) {
        OneTileOfRows::multiply({product.x + begin, x_bytes, weights + c * stride}, ahead, kLines);
      } else {
        Rest rest;
        const TileInputs last =
            rest.filled(product.x + begin, product.x_stride, weights + c * stride, product.rows, inputs - begin);
        OneTileOfRows::multiply(last, ahead, kLines);
      }
      OneTileOfRows::end(sums + c * kPanelSums);
    }
  }
}

// One row, two panels in turn, by vectors: a tile's sums of first and second numbers of pairs apart, then together, then
// to the sum, as the instruction is defined, which gives its bits (but for subnormal numbers, which tiles take for zero).
// So one row is as it is in a batch, and reads memory faster than tiles of one row do (measured: benchmarks/README.md).
void run_one_row_of_two(const PackedProduct<BFloat16>& product, const BFloat16* panel, bool has_next, float* sums) {
  constexpr int64_t kTurn = kTileInputs * kPanelOutputs, kPair = 2 * kPanelOutputs;
  const int64_t inputs = packed_inputs<BFloat16>(product.inputs), stride = inputs * kPanelOutputs;
  Floats totals[2][kPanelVectors] = {};
  for (int64_t begin = 0; begin < inputs; begin += kTileInputs) {
    const int64_t end = begin + kTileInputs < inputs ? begin + kTileInputs : inputs;
    const int64_t to_next = end < inputs ? kTurn : has_next ? 2 * stride - begin * kPanelOutputs : 0;
    const BFloat16* weights = panel + begin * kPanelOutputs;
    Floats first[2][kPanelVectors] = {}, second[2][kPanelVectors] = {};
    for (int64_t k = begin; k < end; k += 2, weights += kPair) {
      const Floats one = splat(to_float(product.x[k])), other = splat(to_float(product.x[k + 1]));
#pragma GCC unroll 2
      for (int c = 0; c < 2; ++c)
#pragma GCC unroll 4
        for (int v = 0; v < kPanelVectors; ++v) {
          const BFloat16* const line = weights + c * stride + v * 2 * kLanes;
          __builtin_prefetch(line + to_next, 0, 2);
          const Words words = load_words(line);
          first[c][v] += one * reinterpret_cast<Floats>(words << 16);
          second[c][v] += other * reinterpret_cast<Floats>(words & 0xffff0000u);
        }
    }
    for (int c = 0; c < 2; ++c)
      for (int v = 0; v < kPanelVectors; ++v) totals[c][v] += first[c][v] + second[c][v];
  }
  for (int c = 0; c < 2; ++c)
    for (int v = 0; v < kPanelVectors; ++v) store(sums + c * kPanelSums + v * kLanes, totals[c][v]);
}

// The next step of a panel, of which a few lines are asked for at each of four loads of so many turns: how many. In several
// runs, one core has more of them on their way (ahead.h).
int look_ahead(const BFloat16* next, int64_t inputs, int64_t turns, int runs, Ahead& ahead) {
  const int64_t bytes = inputs * kPanelOutputs * int64_t{sizeof(BFloat16)};
  const int64_t run_bytes = divided_up(bytes, 64 * runs) * 64;
  ahead.begin(run_bytes);
  for (int i = 0; i < runs; ++i) ahead.add(reinterpret_cast<const char*>(next) + i * run_bytes);
  return static_cast<int>(divided_up(runs * run_bytes, 4 * 64 * turns));
}

// More rows, in groups of up to two tiles: steps of a panel, which all groups pass over while the next step is asked for.
// Every other step goes through the groups backwards, so that tiles of the same shape follow each other. has_next: another
// panel follows.
void run_many_rows(const PackedProduct<BFloat16>& product, const BFloat16* panel, bool has_next, float* sums,
                   ConfiguredTiles& tiles) {
  const int64_t inputs = packed_inputs<BFloat16>(product.inputs), groups = divided_up(product.rows, 2 * kTileHeight);
  const int64_t deep = divided_up(inputs, kTileInputs);
  const int64_t steps = divided_up(deep, groups == 1 ? kStepTiles : kStepTilesOfGroups);
  const auto start = [&](int64_t step) { return step == steps ? inputs : deep * step / steps * kTileInputs; };
  for (int64_t i = 0; i < steps; ++i) {
    const int64_t begin = start(i), depth = start(i + 1) - begin;
    const int64_t next = i + 1 < steps ? start(i + 2) - start(i + 1) : has_next ? start(1) : 0;
    const int64_t turns = (depth / kTileInputs > 0 ? depth / kTileInputs : 1) * 2 * groups;
    const BFloat16* const weights = panel + begin * kPanelOutputs;
    Ahead ahead;
    const int runs = groups == 1 ? 1 : Ahead::kMostRuns;
    const int lines = look_ahead(weights + depth * kPanelOutputs, next, turns, runs, ahead);
    for (int64_t k = 0; k < groups; ++k) {
      const int64_t group = i % 2 == 0 ? k : groups - 1 - k;
      const int64_t row = product.rows * group / groups, rows = product.rows * (group + 1) / groups - row;
      const RowGroup step{product.x + row * product.x_stride + begin, product.x_stride, rows, weights, depth,
                           sums + row * kPanelOutputs, i == 0};
      if (rows <= kTileHeight) {
        configure<OneTileOfRows>(rows, tiles);
        run_group<OneTileOfRows, 4>(step, ahead, lines);
      } else {
        configure<TwoTilesOfRows>(rows, tiles);
        run_group<TwoTilesOfRows, 2>(step, ahead, lines);
      }
    }
  }
}

// `count` numbers: value(0), value(1), ...
template <class Value>
std::vector<BFloat16> numbers(int64_t count, const Value& value) {
  std::vector<BFloat16> result(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) store_part(&result[static_cast<size_t>(i)], splat(value(i)), 1);
  return result;
}

bool are_loops(const std::vector<BFloat16>& x, const std::vector<BFloat16>& panel, int64_t rows, int64_t inputs,
               const std::vector<float>& sums) {
  for (int64_t r = 0; r < rows; ++r)
    for (int lane = 0; lane < kPanelOutputs; ++lane) {
      float want = 0;
      for (int64_t k = 0; k < inputs; ++k)
        want += to_float(x[r * inputs + k]) * to_float(panel[panel_position<BFloat16>(k, lane)]);
      if (sums[r * kPanelOutputs + lane] != want) return false;
    }
  return true;
}

// Products of small integers, whose sums are exact in any order: with rests of rows and inputs, and sums that go on.
bool give_what_loops_give() {
  constexpr int64_t kRows = 37, kInputs = 262;  // two steps of several groups
  const auto integer = [](int64_t i) { return static_cast<float>(i * 7 % 17 - 8); };
  const auto x = numbers(kRows * kInputs, integer);
  const auto panel = numbers(kInputs * kPanelOutputs, [&](int64_t i) { return integer(i / 3); });
  std::vector<float> sums(kRows * kPanelOutputs);
  for (const int64_t rows : {int64_t{3}, kRows}) {
    const PackedProduct<BFloat16> product{panel.data(), kInputs, rows, x.data(), kInputs, 1};
    ConfiguredTiles tiles;
    multiply_panels_in_tiles(product, 0, 1, 1, sums.data(), tiles);
    if (!are_loops(x, panel, rows, kInputs, sums)) return false;
  }
  return true;
}

// Whether one row by vectors has the bits that tiles give, here where numbers are rounded.
bool gives_what_tiles_give() {
  constexpr int64_t kInputs = 70;
  const auto fraction = [](int64_t i) { return static_cast<float>(i * 37 % 101 - 50) / 83.0f; };
  const auto x = numbers(kInputs, fraction);
  const auto panels = numbers(2 * kInputs * kPanelOutputs, [&](int64_t i) { return fraction(i / 3); });
  std::vector<float> by_tiles(2 * kPanelSums), by_vectors(2 * kPanelSums);
  const PackedProduct<BFloat16> product{panels.data(), kInputs, 1, x.data(), kInputs, 2};
  {
    ConfiguredTiles tiles;
    run_few_rows_of_two(product, panels.data(), false, by_tiles.data(), tiles);
  }
  run_one_row_of_two(product, panels.data(), false, by_vectors.data());
  for (const int64_t panel : {int64_t{0}, kPanelSums})
    if (std::memcmp(&by_tiles[static_cast<size_t>(panel)], &by_vectors[static_cast<size_t>(panel)],
                    kPanelOutputs * sizeof(float)) != 0)
      return false;
  return true;
}

bool one_row_is_as_in_tiles() {
  static const bool is = gives_what_tiles_give();
  return is;
}

bool& tiles_are_wanted() {
  static bool wanted = true;
  return wanted;
}

}  // namespace

bool tiles_are_used() {
  static const bool work = amx_is_permitted() && give_what_loops_give();
  return work && tiles_are_wanted();
}

void use_tiles(bool wanted) {
  tiles_are_wanted() = wanted;
}

void release_tiles() {
  KVPLAN_TILE_RELEASE();
}

void multiply_panels_in_tiles(const PackedProduct<BFloat16>& product, int64_t panel, int64_t panels, int64_t end_panel,
                              float* sums, ConfiguredTiles& tiles) {
  const int64_t panel_elements = packed_inputs<BFloat16>(product.inputs) * kPanelOutputs;
  const bool in_pairs = product.rows <= kPairedTileRows;
  for (int64_t c = 0; c < panels;) {
    const int64_t taken = in_pairs && c + 1 < panels ? 2 : 1;
    const BFloat16* const weights = product.packed + (panel + c) * panel_elements;
    const bool has_next = panel + c + 2 * taken <= end_panel;
    float* const target = sums + c * kPanelSums;
    if (!in_pairs) {
      run_many_rows(product, weights, has_next, target, tiles);
    } else if (taken == 1) {
      run_few_rows(product, weights, target, tiles);
    } else if (product.rows == 1 && one_row_is_as_in_tiles()) {
      run_one_row_of_two(product, weights, has_next, target);
    } else {
      run_few_rows_of_two(product, weights, has_next, target, tiles);
    }
    c += taken;
  }
}

}  // namespace kvplan

#else

void kvplan::release_tiles() {}

bool kvplan::tiles_are_used() {
  return false;
}

#endif
