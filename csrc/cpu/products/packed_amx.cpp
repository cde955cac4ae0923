#include "packed_amx.h"

#include <vector>

#if KVPLAN_AMX

namespace kvplan {
namespace {

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

  TileInputs filled(const TileStep<BFloat16>& step, int64_t begin, int64_t rows) {
    const size_t inputs = static_cast<size_t>(step.depth - begin);
    std::memset(x, 0, sizeof x);
    std::memset(panel, 0, sizeof panel);
    for (int64_t r = 0; r < rows; ++r)
      std::memcpy(x + r * kTileInputs, step.x + r * step.x_stride + begin, inputs * sizeof(BFloat16));
    std::memcpy(panel, step.panel + begin * kPanelOutputs, inputs * kPanelOutputs * sizeof(BFloat16));
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

  KVPLAN_INLINE static void begin(float* sums, int, int64_t, bool starts) {
    if (starts) return zero_sums();
    settle(sums);
    KVPLAN_TILE_LOAD(0, sums, kSumsRowBytes);
    KVPLAN_TILE_LOAD(1, sums + kTileOutputs, kSumsRowBytes);
    KVPLAN_TILE_LOAD(2, sums + 2 * kTileOutputs, kSumsRowBytes);
    KVPLAN_TILE_LOAD(3, sums + 3 * kTileOutputs, kSumsRowBytes);
  }

  KVPLAN_INLINE static void multiply(const TileInputs& in, int, int64_t) {
    KVPLAN_TILE_LOAD(4, in.x, in.x_bytes);
    KVPLAN_TILE_LOAD(5, quarter(in.panel, 0), kPanelRowBytes);
    KVPLAN_TILE_MULTIPLY(0, 4, 5);
    KVPLAN_TILE_LOAD(6, quarter(in.panel, 1), kPanelRowBytes);
    KVPLAN_TILE_MULTIPLY(1, 4, 6);
    KVPLAN_TILE_LOAD(7, quarter(in.panel, 2), kPanelRowBytes);
    KVPLAN_TILE_MULTIPLY(2, 4, 7);
    KVPLAN_TILE_LOAD(5, quarter(in.panel, 3), kPanelRowBytes);
    KVPLAN_TILE_MULTIPLY(3, 4, 5);
  }

  KVPLAN_INLINE static void end(float* sums, int, int64_t) {
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

  KVPLAN_INLINE static void begin(float* sums, int first, int64_t upper, bool starts) {
    if (starts) return zero_sums();
    settle(sums);
    float* const one = sums + first * kTileOutputs;
    float* const other = one + upper * kPanelOutputs;
    KVPLAN_TILE_LOAD(0, one, kSumsRowBytes);
    KVPLAN_TILE_LOAD(1, one + kTileOutputs, kSumsRowBytes);
    KVPLAN_TILE_LOAD(2, other, kSumsRowBytes);
    KVPLAN_TILE_LOAD(3, other + kTileOutputs, kSumsRowBytes);
  }

  KVPLAN_INLINE static void multiply(const TileInputs& in, int first, int64_t upper) {
    KVPLAN_TILE_LOAD(4, in.x, in.x_bytes);
    KVPLAN_TILE_LOAD(6, quarter(in.panel, first), kPanelRowBytes);
    KVPLAN_TILE_MULTIPLY(0, 4, 6);
    KVPLAN_TILE_LOAD(5, reinterpret_cast<const char*>(in.x) + upper * in.x_bytes, in.x_bytes);
    KVPLAN_TILE_MULTIPLY(2, 5, 6);
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

// One group of rows: its sums of `kQuarters` quarters of the panel at a time, over all of the step's inputs.
template <class Group, int kQuarters>
void run_group(const TileStep<BFloat16>& step, int64_t rows, int64_t ahead_bytes) {
  const int64_t whole = step.depth / kTileInputs, upper = (rows + 1) / 2, x_bytes = step.x_stride * int64_t{sizeof(BFloat16)};
  const int64_t loops = whole * (4 / kQuarters), ahead_each = loops == 0 ? 0 : (ahead_bytes + loops - 1) / loops;
  const char* ahead = step.ahead;
  Rest rest;
  TileInputs last{};
  if (whole * kTileInputs < step.depth) last = rest.filled(step, whole * kTileInputs, rows);
  for (int first = 0; first < 4; first += kQuarters) {
    Group::begin(step.sums, first, upper, step.starts);
    for (int64_t i = 0; i < whole; ++i) {
      prefetch_bytes(ahead, ahead_each);
      ahead += ahead_each;
      const int64_t begin = i * kTileInputs;
      Group::multiply({step.x + begin, x_bytes, step.panel + begin * kPanelOutputs}, first, upper);
    }
    if (last.x != nullptr) Group::multiply(last, first, upper);
    Group::end(step.sums, first, upper);
  }
}

// Products of small integers, whose sums are exact in any order: with rests of rows and inputs, and sums that go on.
bool give_what_loops_give() {
  constexpr int64_t kRows = 37, kInputs = 70;
  std::vector<BFloat16> x(kRows * kInputs), panel(kInputs * kPanelOutputs);
  std::vector<float> sums(kRows * kPanelOutputs);
  const auto integer = [](int64_t i) {
    BFloat16 result;
    store_part(&result, splat(static_cast<float>(i * 7 % 17 - 8)), 1);
    return result;
  };
  for (size_t i = 0; i < x.size(); ++i) x[i] = integer(static_cast<int64_t>(i));
  for (size_t i = 0; i < panel.size(); ++i) panel[i] = integer(static_cast<int64_t>(i / 3));
  TileStep<BFloat16> step{};
  step.x = x.data();
  step.x_stride = kInputs;
  step.panel = panel.data();
  step.depth = kInputs;
  step.sums = sums.data();
  step.ahead = reinterpret_cast<const char*>(panel.data());
  for (const bool starts : {true, false}) {
    step.starts = starts;
    run_rows_in_tiles(step, kRows, 0);
  }
  for (int64_t r = 0; r < kRows; ++r)
    for (int lane = 0; lane < kPanelOutputs; ++lane) {
      float want = 0;
      for (int64_t k = 0; k < kInputs; ++k)
        want += 2 * to_float(x[r * kInputs + k]) * to_float(panel[panel_position<BFloat16>(k, lane)]);
      if (sums[r * kPanelOutputs + lane] != want) return false;
    }
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

void use_tiles(bool wanted) {
  tiles_are_wanted() = wanted;
}

void run_rows_in_tiles(const TileStep<BFloat16>& step, int64_t rows, int64_t ahead_bytes) {
  const int64_t groups = (rows + 2 * kTileHeight - 1) / (2 * kTileHeight);
  for (int64_t i = 0; i < groups; ++i) {
    const int64_t begin = rows * i / groups, count = rows * (i + 1) / groups - begin;
    TileStep<BFloat16> group = step;
    group.x += begin * step.x_stride;
    group.sums += begin * kPanelOutputs;
    group.ahead += ahead_bytes * i / groups;
    if (count <= kTileHeight) {
      OneTileOfRows::configure(count);
      run_group<OneTileOfRows, 4>(group, count, ahead_bytes / groups);
    } else {
      TwoTilesOfRows::configure(count);
      run_group<TwoTilesOfRows, 2>(group, count, ahead_bytes / groups);
    }
  }
  KVPLAN_TILE_RELEASE();
}

}  // namespace kvplan

#endif
