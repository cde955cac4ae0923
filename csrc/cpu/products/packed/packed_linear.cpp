// Products with weights that were packed once (packed_tile.h), for any number of rows, with what follows the product.
//
// Rows of x are taken in chunks that stay in the second-level cache. For each chunk every thread has a run of panels of its
// own, and then takes those that others have left. A panel is walked in steps whose weights stay in the first-level cache
// while all rows of the chunk pass over them, and the next step's weights are prefetched meanwhile, on into the next item.
#include <vector>

#include "../lora/lora_rows.h"
#include "packed_amx.h"
#include "packed_product.h"
#include "../../parallel.h"

namespace kvplan {
namespace {

constexpr int64_t kStepBytes = 20480;          // of a panel, a good half of the first-level cache
constexpr int64_t kStreamedStepBytes = 10240;  // the same where the next step comes into that cache meanwhile
constexpr int64_t kMostWaitingTiles = 3;       // tiles of rows that wait for a step of weights rather than work on it

template <class T>
using Tile = void (*)(const TileStep<T>&);

template <class T, int kRows, Cache kAhead, int kAheadLines>
constexpr Tile<T> kSingleTile = run_tile<T, kRows, 1, kPanelVectors, kAhead, kAheadLines>;

template <class T, Cache kAhead, int kAheadLines>
Tile<T> single_panel_tile(int64_t rows) {
  static constexpr Tile<T> kTiles[kPanelTileRows] = {
      kSingleTile<T, 1, kAhead, kAheadLines>, kSingleTile<T, 2, kAhead, kAheadLines>,
      kSingleTile<T, 3, kAhead, kAheadLines>, kSingleTile<T, 4, kAhead, kAheadLines>,
      kSingleTile<T, 5, kAhead, kAheadLines>, kSingleTile<T, 6, kAhead, kAheadLines>};
  return kTiles[rows - 1];
}

// Where a tall tile's next step goes, see kLeastTallRows.
constexpr Cache kTallAhead = kLeastTallRows < kPanelTileRows ? Cache::kSecondLevel : Cache::kFirstLevel;

template <class T, int kRows>
constexpr Tile<T> kTallTile = run_tile<T, kRows, 1, kPanelVectors / 2, kTallAhead, 2>;

// Of all rows of a product of up to kTallTileRows: then each line of weights is read once, from the cache where the step
// before has brought it. A second tile of rows would find its weights there, while the first one waits for all of them.
template <class T>
Tile<T> streaming_tile(int64_t rows) {
  static constexpr Tile<T> kTiles[] = {kTallTile<T, 3>, kTallTile<T, 4>, kTallTile<T, 5>, kTallTile<T, 6>,
                                       kTallTile<T, 7>, kTallTile<T, 8>, kTallTile<T, 9>, kTallTile<T, 10>};
  if (rows < kLeastTallRows) return single_panel_tile<T, Cache::kFirstLevel, 4>(rows);
  return kTiles[rows - 3];
}

// The fewer tiles pass over a step of weights, the more lines of the next step each of them has to ask for, and the more
// of them are under way at a time (measured: benchmarks/README.md).
template <class T>
Tile<T> tile_of(int64_t rows, int64_t tiles) {
  if (tiles <= kMostWaitingTiles) return single_panel_tile<T, Cache::kSecondLevel, 2>(rows);
  return single_panel_tile<T, Cache::kFirstLevel, 1>(rows);
}

// One step of one panel for all rows, in tiles of nearly equal height.
template <class T>
void run_rows(const PackedProduct<T>& product, TileStep<T> step, int64_t ahead_bytes) {
  if (product.rows <= kTallTileRows) {
    const int64_t passes = product.rows < kLeastTallRows ? 1 : 2;
    step.ahead_bytes = divided_up(ahead_bytes * Inner<T>::kInputs, passes * step.depth);
    return streaming_tile<T>(product.rows)(step);
  }
  const int64_t tiles = divided_up(product.rows, kPanelTileRows);
  const Input<T>* x = step.x;
  float* sums = step.sums;
  const char* ahead = step.ahead;
  for (int64_t i = 0; i < tiles; ++i) {
    const int64_t begin = product.rows * i / tiles, end = product.rows * (i + 1) / tiles;
    step.x = x + begin * product.x_stride;
    step.sums = sums + begin * kPanelOutputs;
    step.ahead = ahead + ahead_bytes * i / tiles;
    step.ahead_bytes = divided_up(ahead_bytes * Inner<T>::kInputs, tiles * step.depth);
    tile_of<T>(end - begin, tiles)(step);
  }
}

}  // namespace

template <class T>
void multiply_unit(const PackedProduct<T>& product, int64_t panel, int64_t panels, int64_t end_panel, float* sums,
                   [[maybe_unused]] ConfiguredTiles& tiles) {
#if KVPLAN_AMX
  if constexpr (sizeof(T) == sizeof(BFloat16)) {
    if (tiles_are_used()) return multiply_panels_in_tiles(product, panel, panels, end_panel, sums, tiles);
  }
#endif
  const int64_t grain = Inner<T>::kInputs, inputs = packed_inputs<T>(product.inputs), groups = inputs / grain;
  const bool pair_of_one_row = product.rows == 1 && panels == 2;
  const bool together =
      (panels == product.unit_panels || pair_of_one_row) && panels > 1 && product.rows <= 2;
  const bool streams = product.rows <= kTallTileRows && !together;
  const int64_t step_bytes = streams ? kStreamedStepBytes : kStepBytes;
  const int64_t steps = divided_up(inputs * kPanelOutputs * int64_t{sizeof(T)}, step_bytes);
  const T* weights = product.packed + panel * inputs * kPanelOutputs;
  TileStep<T> step{};
  step.x_stride = product.x_stride;
  step.panel_stride = inputs * kPanelOutputs;
  step.sums_stride = kPanelSums;
  for (int64_t c = 0; c < (together ? 1 : panels); ++c)
    for (int64_t i = 0; i < steps; ++i) {
      const int64_t begin = groups * i / steps * grain;
      const int64_t end = i + 1 == steps ? inputs : groups * (i + 1) / steps * grain;
      step.x = product.x + begin;
      step.panel = weights + c * step.panel_stride + begin * kPanelOutputs;
      step.depth = end - begin;
      step.sums = sums + c * step.sums_stride;
      step.starts = i == 0;
      if (together) {
        step.ahead = reinterpret_cast<const char*>(step.panel);
        if (pair_of_one_row) {
          run_tile<T, 1, 2, kPanelVectors, Cache::kSecondLevel, 1>(step);
        } else if (product.rows == 1) {
          run_tile<T, 1, 4, kPanelVectors, Cache::kSecondLevel, 1>(step);
        } else {
          run_tile<T, 2, 2, kPanelVectors, Cache::kSecondLevel, 1>(step);
        }
        continue;
      }
      const int64_t bytes = step.depth * kPanelOutputs * int64_t{sizeof(T)};
      const bool more = panel + c + 1 < end_panel || i + 1 < steps;
      step.ahead = reinterpret_cast<const char*>(step.panel) + (more ? bytes : 0);
      run_rows(product, step, more ? bytes : 0);
    }
}

template void multiply_unit(const PackedProduct<float>&, int64_t, int64_t, int64_t, float*, ConfiguredTiles&);
template void multiply_unit(const PackedProduct<BFloat16>&, int64_t, int64_t, int64_t, float*, ConfiguredTiles&);

namespace {

// Panels left over when every thread has as many whole ones, and the pieces into which each one's rows are cut: of 9
// panels one of two threads would have 5.
struct LeftOver {
  int64_t panels, pieces;
};

inline LeftOver left_over(int64_t panels, int64_t rows, int threads) {
  constexpr int64_t kFewRounds = 16;  // a panel more is nothing beside more of them
  const int64_t left = panels % threads;
  LeftOver best{0, 1};
  if (left == 0 || panels > kFewRounds * threads) return best;
  double least = 1.0;  // panels' time that the left ones take
  for (int64_t pieces = 2; pieces <= 4 && rows / pieces >= kPanelTileRows; ++pieces) {
    const double time = static_cast<double>(divided_up(left * pieces, threads)) / static_cast<double>(pieces);
    if (time < least) least = time, best = {left, pieces};
  }
  return best;
}

// Rows [begin, end) of one panel.
template <class T>
void run_piece(PackedProduct<T> product, PanelResult<T, T> result, int64_t panel, int64_t begin, int64_t end,
               float* sums) {
  product.x += begin * product.x_stride;
  product.rows = end - begin;
  product.unit_panels = 1;
  result.out += begin * result.out_stride;
  run_panels(product, panel, panel + 1, false, sums, result);
}

template <class T>
void run_chunk(const kvplan_packed_linear& args, int64_t row, int64_t rows, std::vector<Input<T>>& memory,
               int threads) {
  const T* x = static_cast<const T*>(args.x) + row * args.x_stride;
  const bool direct = reads_in_place<T>(args.inputs, args.x_stride, rows), pairs = is_gated(args.activation);
  const int64_t x_stride = direct ? args.x_stride : copied_stride<T>(args.inputs);
  if (!direct) memory.resize(static_cast<size_t>(rows * x_stride));
  Input<T>* copy = memory.data();
  const PackedProduct<T> product{static_cast<const T*>(args.packed), args.inputs, rows,
                                 direct ? reinterpret_cast<const Input<T>*>(x) : copy, x_stride,
                                 unit_panels<T>(pairs, rows)};
  const PanelResult<T, T> result{static_cast<const T*>(args.bias),
                                 static_cast<T*>(args.out) + row * args.out_stride,
                                 args.out_stride,
                                 pairs ? args.outputs / 2 : args.outputs,
                                 args.activation,
                                 0.0f,
                                 goes_past_caches(args)};
  const LoraRows<T> lora(args, row, row + rows);
  const int64_t panels = num_panels(args.outputs, pairs);
  // One row's weights are shared out by pairs of panels: of 12 in units of four one thread would read twice as many.
  const int64_t unit = rows == 1 ? 2 : product.unit_panels;
  const LeftOver left = pairs || lora.items() > 0 ? LeftOver{0, 1} : left_over(panels, rows, threads);
  const int64_t whole = panels - left.panels;
  const PanelItems items(whole, unit, threads);
  const int64_t copies = direct ? 0 : rows;
  const auto prepare = [&](int64_t i) {
    if (i < copies)
      copy_row(x + i * args.x_stride, copy + i * x_stride, args.inputs);
    else
      lora.narrow(i - copies);
  };
  const auto finish = [&](int64_t panel, int64_t, float* sums) {
    lora.widen_panels(panel, sums);
    result(panel, rows, sums);
  };
  const auto multiply = [&](int64_t item, const auto& next) {
    const int64_t read_on = items.end(next() == item + 1 ? item + 1 : item);
    run_panels(product, items.begin(item), items.end(item), pairs, unit_sums(), finish, read_on);
    if (result.past_caches) finish_past_caches();
  };
  const auto multiply_piece = [&](int64_t item) {
    const int64_t panel = whole + item / left.pieces, piece = item % left.pieces;
    run_piece(product, result, panel, rows * piece / left.pieces, rows * (piece + 1) / left.pieces, unit_sums());
    if (result.past_caches) finish_past_caches();
  };
  for_each_item_in_turn(copies + lora.items(), prepare, items.count(), multiply, left.panels * left.pieces,
                        multiply_piece, threads);
}

template <class T>
void multiply_packed(const kvplan_packed_linear& args, int threads) {
  static thread_local std::vector<Input<T>> memory;
  const int64_t chunks = divided_up(args.rows, chunk_rows<T>(args.inputs));
  for (int64_t i = 0; i < chunks; ++i) {
    const int64_t begin = args.rows * i / chunks, end = args.rows * (i + 1) / chunks;
    run_chunk<T>(args, begin, end - begin, memory, threads);
  }
}

}  // namespace

template <class T>
void pack(const T* weight, T* packed, int64_t inputs, int64_t outputs, bool gated, int threads) {
  for_each_range(num_panels(outputs, gated), 1, threads, [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t first = first_output(panel, outputs, gated);
      T* target = packed + panel * packed_inputs<T>(inputs) * kPanelOutputs;
      for (int lane = 0; lane < kPanelOutputs; ++lane) {
        const T* source = weight + (first + lane) * inputs;
        const bool real = first + lane < outputs;
        for (int64_t k = 0; k < packed_inputs<T>(inputs); ++k)
          target[panel_position<T>(k, lane)] = real && k < inputs ? source[k] : T{};
      }
    }
  });
}

template void pack(const float*, float*, int64_t, int64_t, bool, int);
template void pack(const BFloat16*, BFloat16*, int64_t, int64_t, bool, int);

namespace {

template <class T>
int unpack_rows(const T* packed, const int64_t* indices, T* out, int64_t out_stride, int64_t rows, int64_t inputs,
                int64_t outputs, int threads) {
  for (int64_t row = 0; row < rows; ++row)
    if (indices[row] < 0 || indices[row] >= outputs) return KVPLAN_BAD_INDEX;
  for_each_range(rows, row_grain(8 * inputs), threads, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int lane = static_cast<int>(indices[row] % kPanelOutputs);
      const T* source = packed + indices[row] / kPanelOutputs * packed_inputs<T>(inputs) * kPanelOutputs;
      T* target = out + row * out_stride;
      for (int64_t k = 0; k < inputs; ++k) target[k] = source[panel_position<T>(k, lane)];
    }
  });
  return KVPLAN_OK;
}

}  // namespace
}  // namespace kvplan

int kvplan_use_tiles([[maybe_unused]] int wanted) {
#if KVPLAN_AMX
  if (wanted >= 0) kvplan::use_tiles(wanted != 0);
#endif
  return kvplan::tiles_are_used();
}

int64_t kvplan_packed_outputs(int64_t outputs) {
  return kvplan::divided_up(outputs, kvplan::kPanelOutputs) * kvplan::kPanelOutputs;
}

int64_t kvplan_packed_inputs(int64_t inputs, int storage) {
  using namespace kvplan;
  return storage == KVPLAN_BFLOAT16 ? packed_inputs<BFloat16>(inputs) : packed_inputs<float>(inputs);
}

int kvplan_pack_weight(const void* weight, void* packed, int64_t inputs, int64_t outputs, int gated, int storage,
                       int threads) {
  using namespace kvplan;
  if (gated != 0 && outputs % (2 * kPanelOutputs) != 0) return KVPLAN_BAD_INDEX;
  if (storage == KVPLAN_BFLOAT16) {
    pack(static_cast<const BFloat16*>(weight), static_cast<BFloat16*>(packed), inputs, outputs, gated != 0, threads);
  } else {
    pack(static_cast<const float*>(weight), static_cast<float*>(packed), inputs, outputs, gated != 0, threads);
  }
  return KVPLAN_OK;
}

int kvplan_unpack_rows(const void* packed, const int64_t* indices, void* out, int64_t out_stride, int64_t rows,
                       int64_t inputs, int64_t outputs, int storage, int threads) {
  using namespace kvplan;
  if (storage == KVPLAN_BFLOAT16)
    return unpack_rows(static_cast<const BFloat16*>(packed), indices, static_cast<BFloat16*>(out), out_stride, rows,
                       inputs, outputs, threads);
  return unpack_rows(static_cast<const float*>(packed), indices, static_cast<float*>(out), out_stride, rows, inputs,
                     outputs, threads);
}

namespace kvplan {
namespace {

void multiply_rows_of_one_format(const kvplan_packed_linear& args, int threads) {
  if (args.format != nullptr) {
    multiply_quantised(args, threads);
  } else if (args.storage == KVPLAN_BFLOAT16) {
    multiply_packed<BFloat16>(args, threads);
  } else {
    multiply_packed<float>(args, threads);
  }
}

}  // namespace
}  // namespace kvplan

int kvplan_multiply_packed(const kvplan_packed_linear* args, int threads) {
  kvplan_packed_linear part = *args;
  for (;;) {
    kvplan::multiply_rows_of_one_format(part, threads > 0 ? threads : 1);
    if (part.next == nullptr) return KVPLAN_OK;
    const kvplan_packed_linear before = part;
    part = *before.next;
    part.x = before.x;
    part.out = static_cast<char*>(before.out) + before.outputs * (before.storage == KVPLAN_BFLOAT16 ? 2 : 4);
    part.x_stride = before.x_stride;
    part.out_stride = before.out_stride;
    part.rows = before.rows;
    part.storage = before.storage;
  }
}
