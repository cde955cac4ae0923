#include "packed_amx.h"

#include <vector>

#if KVPLAN_AMX

namespace kvplan {
namespace {

// Tiles' inputs of a step of a panel, alone and of two in turn: 24 and 8 KiB.
constexpr int64_t kStepTiles = 6, kStepTilesOfTwo = 2;

static_assert(kPairedTileRows <= 2 * kTileHeight);

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

// What panels read next, asked for between the instructions that multiply and those that load or store sums, a few lines in
// each of many places: a burst would keep tiles waiting. In kRuns runs of memory, of which one core has more lines on their
// way than of one (ahead.h). kProductTurns: beside a multiplication; kSumTurns: beside four tiles of sums.
template <int kRuns, int kProductTurns, int kSumTurns>
struct Beside {
  static constexpr int kProductPlaces = 8, kSumPlaces = 4;

  const char* next = nullptr;
  int64_t apart = 0;  // from run to run
  int64_t left = 0;   // turns

  // `inputs` of each of so many panels, `stride` elements apart, from `weights` on.
  void begin(const BFloat16* weights, int64_t inputs, int64_t panels, int64_t stride) {
    const int64_t bytes = inputs * kPanelOutputs * int64_t{sizeof(BFloat16)};
    next = reinterpret_cast<const char*>(weights);
    apart = panels == 1 ? divided_up(bytes, 64 * kRuns) * 64 : stride * int64_t{sizeof(BFloat16)};
    left = divided_up(panels * bytes, 64 * kRuns);
  }

  KVPLAN_INLINE void turn() {
    if (left == 0) return;
    --left;
#pragma GCC unroll 4
    for (int run = 0; run < kRuns; ++run) __builtin_prefetch(next + run * apart, 0, 2);
    next += 64;
  }

  KVPLAN_INLINE void product(int place) {
#pragma GCC unroll 2
    for (int each = place; each < kProductTurns; each += kProductPlaces) turn();
  }

  KVPLAN_INLINE void sums(int place) {
#pragma GCC unroll 2
    for (int each = place; each < kSumTurns; each += kSumPlaces) turn();
  }
};

// The four tiles of sums, whichever way rows are taken.
template <class Beside>
KVPLAN_INLINE void zero_sums(Beside& beside) {
  KVPLAN_TILE_ZERO(0);
  beside.sums(0);
  KVPLAN_TILE_ZERO(1);
  beside.sums(1);
  KVPLAN_TILE_ZERO(2);
  beside.sums(2);
  KVPLAN_TILE_ZERO(3);
  beside.sums(3);
}

template <class Beside>
KVPLAN_INLINE void load_sums(const float* zero, const float* one, const float* two, const float* three, Beside& beside) {
  settle(zero);
  KVPLAN_TILE_LOAD(0, zero, kSumsRowBytes);
  beside.sums(0);
  KVPLAN_TILE_LOAD(1, one, kSumsRowBytes);
  beside.sums(1);
  KVPLAN_TILE_LOAD(2, two, kSumsRowBytes);
  beside.sums(2);
  KVPLAN_TILE_LOAD(3, three, kSumsRowBytes);
  beside.sums(3);
}

template <class Beside>
KVPLAN_INLINE void store_sums(float* zero, float* one, float* two, float* three, Beside& beside) {
  KVPLAN_TILE_STORE(0, zero, kSumsRowBytes);
  beside.sums(0);
  KVPLAN_TILE_STORE(1, one, kSumsRowBytes);
  beside.sums(1);
  KVPLAN_TILE_STORE(2, two, kSumsRowBytes);
  beside.sums(2);
  KVPLAN_TILE_STORE(3, three, kSumsRowBytes);
  beside.sums(3);
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

  template <class Beside>
  KVPLAN_INLINE static void begin(const float* sums, bool starts, Beside& beside, int = 0, int64_t = 0) {
    if (starts) return zero_sums(beside);
    load_sums(sums, sums + kTileOutputs, sums + 2 * kTileOutputs, sums + 3 * kTileOutputs, beside);
  }

  template <class Beside>
  KVPLAN_INLINE static void multiply(const TileInputs& in, Beside& beside, int = 0, int64_t = 0) {
    KVPLAN_TILE_LOAD(4, in.x, in.x_bytes);
    beside.product(0);
    KVPLAN_TILE_STREAM(5, quarter(in.panel, 0), kPanelRowBytes);
    beside.product(4);
    KVPLAN_TILE_MULTIPLY(0, 4, 5);
    beside.product(2);
    KVPLAN_TILE_STREAM(6, quarter(in.panel, 1), kPanelRowBytes);
    beside.product(6);
    KVPLAN_TILE_MULTIPLY(1, 4, 6);
    beside.product(1);
    KVPLAN_TILE_STREAM(7, quarter(in.panel, 2), kPanelRowBytes);
    beside.product(5);
    KVPLAN_TILE_MULTIPLY(2, 4, 7);
    beside.product(3);
    KVPLAN_TILE_STREAM(5, quarter(in.panel, 3), kPanelRowBytes);
    beside.product(7);
    KVPLAN_TILE_MULTIPLY(3, 4, 5);
  }

  template <class Beside>
  KVPLAN_INLINE static void end(float* sums, Beside& beside, int = 0, int64_t = 0) {
    store_sums(sums, sums + kTileOutputs, sums + 2 * kTileOutputs, sums + 3 * kTileOutputs, beside);
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

  template <class Beside>
  KVPLAN_INLINE static void begin(const float* sums, bool starts, Beside& beside, int first, int64_t upper) {
    if (starts) return zero_sums(beside);
    const float* const one = sums + first * kTileOutputs;
    const float* const other = one + upper * kPanelOutputs;
    load_sums(one, one + kTileOutputs, other, other + kTileOutputs, beside);
  }

  template <class Beside>
  KVPLAN_INLINE static void multiply(const TileInputs& in, Beside& beside, int first, int64_t upper) {
    beside.product(0);
    KVPLAN_TILE_LOAD(4, in.x, in.x_bytes);
    beside.product(4);
    KVPLAN_TILE_STREAM(6, quarter(in.panel, first), kPanelRowBytes);
    beside.product(2);
    KVPLAN_TILE_MULTIPLY(0, 4, 6);
    beside.product(6);
    KVPLAN_TILE_LOAD(5, reinterpret_cast<const char*>(in.x) + upper * in.x_bytes, in.x_bytes);
    beside.product(1);
    KVPLAN_TILE_MULTIPLY(2, 5, 6);
    beside.product(5);
    KVPLAN_TILE_STREAM(7, quarter(in.panel, first + 1), kPanelRowBytes);
    beside.product(3);
    KVPLAN_TILE_MULTIPLY(1, 4, 7);
    beside.product(7);
    KVPLAN_TILE_MULTIPLY(3, 5, 7);
  }

  template <class Beside>
  KVPLAN_INLINE static void end(float* sums, Beside& beside, int first, int64_t upper) {
    float* const one = sums + first * kTileOutputs;
    float* const other = one + upper * kPanelOutputs;
    store_sums(one, one + kTileOutputs, other, other + kTileOutputs, beside);
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

// Sums of `kQuarters` quarters of the panel at a time, over all of the step's inputs. Of what is needed next, some is asked for
// meanwhile.
template <class Group, int kQuarters, class Beside>
KVPLAN_INLINE void run_group(const RowGroup step, Beside& beside) {
  const int64_t whole = step.depth / kTileInputs, left = step.depth % kTileInputs, upper = (step.rows + 1) / 2;
  const int64_t x_bytes = step.x_stride * int64_t{sizeof(BFloat16)};
  Rest rest;
  TileInputs last{};
  if (left > 0) {
    const int64_t begin = whole * kTileInputs;
    last = rest.filled(step.x + begin, step.x_stride, step.panel + begin * kPanelOutputs, step.rows, left);
  }
  for (int first = 0; first < 4; first += kQuarters) {
    Group::begin(step.sums, step.starts, beside, first, upper);
    for (int64_t begin = 0; begin < whole * kTileInputs; begin += kTileInputs)
      Group::multiply({step.x + begin, x_bytes, step.panel + begin * kPanelOutputs}, beside, first, upper);
    if (left > 0) Group::multiply(last, beside, first, upper);
    Group::end(step.sums, beside, first, upper);
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
  Beside<1, 0, 0> nothing;
  run_group<OneTileOfRows, 4>({product.x, product.x_stride, product.rows, panel, inputs, sums, true}, nothing);
}

// The same for two panels in turn, a tile's inputs of each, while what both read at the next turn is asked for: one core has
// more lines on their way from two runs of memory than from one, and most where it asks for a few at a time. Sums of few
// rows are soon stored and loaded. has_next: two more panels follow.
void run_few_rows_of_two(const PackedProduct<BFloat16>& product, const BFloat16* panel, bool has_next, float* sums,
                         ConfiguredTiles& tiles) {
  configure<OneTileOfRows>(product.rows, tiles);
  const int64_t inputs = packed_inputs<BFloat16>(product.inputs), stride = inputs * kPanelOutputs;
  const int64_t x_bytes = product.x_stride * int64_t{sizeof(BFloat16)};
  for (int64_t begin = 0; begin < inputs; begin += kTileInputs) {
    const BFloat16* const weights = panel + begin * kPanelOutputs;
    Beside<2, 16, 8> beside;
    if (begin + kTileInputs < inputs) {
      beside.begin(weights + kTileInputs * kPanelOutputs, kTileInputs, 2, stride);
    } else if (has_next) {
      beside.begin(panel + 2 * stride, kTileInputs, 2, stride);
    }
    for (int64_t c = 0; c < 2; ++c) {
      OneTileOfRows::begin(sums + c * kPanelSums, begin == 0, beside);
      if (begin + kTileInputs <= inputs) {
        OneTileOfRows::multiply({product.x + begin, x_bytes, weights + c * stride}, beside);
      } else {
        Rest rest;
        const TileInputs last =
            rest.filled(product.x + begin, product.x_stride, weights + c * stride, product.rows, inputs - begin);
        OneTileOfRows::multiply(last, beside);
      }
      OneTileOfRows::end(sums + c * kPanelSums, beside);
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

// More rows, in groups of up to two tiles, of kPanels panels in turn: steps of each, which all groups pass over while the
// panels' next steps are asked for. Every other step goes through the groups backwards, so that tiles of the same shape
// follow each other. has_next: as many panels follow.
template <int kPanels, class Beside>
void run_steps(const PackedProduct<BFloat16>& product, const BFloat16* panel, bool has_next, float* sums,
               ConfiguredTiles& tiles) {
  const int64_t inputs = packed_inputs<BFloat16>(product.inputs), stride = inputs * kPanelOutputs;
  const int64_t groups = divided_up(product.rows, 2 * kTileHeight), deep = divided_up(inputs, kTileInputs);
  const int64_t steps = divided_up(deep, kPanels == 1 ? kStepTiles : kStepTilesOfTwo);
  const auto start = [&](int64_t step) { return step == steps ? inputs : deep * step / steps * kTileInputs; };
  for (int64_t i = 0; i < steps; ++i) {
    const int64_t begin = start(i), depth = start(i + 1) - begin;
    const BFloat16* const weights = panel + begin * kPanelOutputs;
    Beside beside;
    if (i + 1 < steps) {
      beside.begin(weights + depth * kPanelOutputs, start(i + 2) - start(i + 1), kPanels, stride);
    } else if (has_next) {
      beside.begin(panel + kPanels * stride, start(1), kPanels, stride);
    }
    for (int64_t k = 0; k < groups * kPanels; ++k) {
      const int64_t c = k / groups, group = (i * kPanels + c) % 2 == 0 ? k % groups : groups - 1 - k % groups;
      const int64_t row = product.rows * group / groups, rows = product.rows * (group + 1) / groups - row;
      const RowGroup step{product.x + row * product.x_stride + begin, product.x_stride, rows, weights + c * stride, depth,
                          sums + c * kPanelSums + row * kPanelOutputs, i == 0};
      if (rows <= kTileHeight) {
        configure<OneTileOfRows>(rows, tiles);
        run_group<OneTileOfRows, 4>(step, beside);
      } else {
        configure<TwoTilesOfRows>(rows, tiles);
        run_group<TwoTilesOfRows, 2>(step, beside);
      }
    }
  }
}

// With as many turns beside each multiplication as ask for all of the next step. Sums are begun and stored twice in a step
// for each group, kStepTiles or kStepTilesOfTwo multiplications between.
void run_many_rows(const PackedProduct<BFloat16>& product, const BFloat16* panel, int64_t panels, bool has_next, float* sums,
                   ConfiguredTiles& tiles) {
  if (panels == 2) {
    run_steps<2, Beside<2, 10, 6>>(product, panel, has_next, sums, tiles);
  } else if (product.rows <= 2 * 2 * kTileHeight) {
    run_steps<1, Beside<4, 3, 3>>(product, panel, has_next, sums, tiles);
  } else {
    run_steps<1, Beside<4, 2, 1>>(product, panel, has_next, sums, tiles);
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

#if KVPLAN_AMX_INT8
// One product of signed bytes with unsigned ones, of all shapes' largest.
bool bytes_give_what_loops_give() {
  constexpr int kInputs = 64;
  alignas(64) int8_t x[kTileHeight * kInputs];
  alignas(64) uint8_t codes[kInputs * kTileOutputs];
  alignas(64) int32_t sums[kTileHeight * kTileOutputs];
  for (int i = 0; i < kTileHeight * kInputs; ++i) x[i] = static_cast<int8_t>(i * 37 % 255 - 127);
  for (int i = 0; i < kInputs * kTileOutputs; ++i) codes[i] = static_cast<uint8_t>(i * 91 % 256);
  TileShapes shapes;
  for (int tile = 0; tile < 3; ++tile) shapes.set(tile, kTileHeight);
  settle(&shapes);
  settle(x);
  settle(codes);
  KVPLAN_TILE_CONFIGURE(&shapes);
  KVPLAN_TILE_ZERO(0);
  KVPLAN_TILE_LOAD(1, x, kInputs);
  KVPLAN_TILE_LOAD(2, codes, 4 * kTileOutputs);
  KVPLAN_TILE_MULTIPLY_BYTES(0, 1, 2);
  KVPLAN_TILE_STORE(0, sums, kTileOutputs * int64_t{sizeof(int32_t)});
  KVPLAN_TILE_RELEASE();
  settle(sums);
  for (int r = 0; r < kTileHeight; ++r)
    for (int o = 0; o < kTileOutputs; ++o) {
      int32_t want = 0;
      for (int k = 0; k < kInputs; ++k) want += x[r * kInputs + k] * codes[k / 4 * 4 * kTileOutputs + o * 4 + k % 4];
      if (sums[r * kTileOutputs + o] != want) return false;
    }
  return true;
}
#endif

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

bool& tiles_are_wanted() {
  static bool wanted = true;
  return wanted;
}

}  // namespace

bool tiles_are_used() {
  static const bool work = amx_is_permitted() && give_what_loops_give();
  return work && tiles_are_wanted();
}

#if KVPLAN_AMX_INT8
bool byte_tiles_are_used() {
  static const bool work = amx_is_permitted() && bytes_give_what_loops_give();
  return work && tiles_are_wanted();
}
#endif

bool one_row_is_as_in_tiles() {
  static const bool is = gives_what_tiles_give();
  return is;
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
  for (int64_t c = 0; c < panels;) {
    const int64_t taken = product.rows <= kPairedTileRows && c + 1 < panels ? 2 : 1;
    const BFloat16* const weights = product.packed + (panel + c) * panel_elements;
    const bool has_next = panel + c + 2 * taken <= end_panel;
    float* const target = sums + c * kPanelSums;
    if (product.rows > kTileHeight) {
      run_many_rows(product, weights, taken, has_next, target, tiles);
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
