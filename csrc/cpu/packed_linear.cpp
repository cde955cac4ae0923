// Products with weights that were packed once (packed_tile.h), for any number of rows, with what follows the product.
//
// Rows of x are taken in chunks that stay in the second-level cache. For each chunk the threads share the panels; a
// panel is walked in steps whose weights stay in the first-level cache while all rows of the chunk pass over them, and
// the next step's weights are prefetched meanwhile.
#include <cstring>
#include <vector>

#include "packed_tile.h"
#include "parallel.h"
#include "simd_math.h"

namespace kvplan {
namespace {

constexpr int64_t kMostChunkRows = 192;
constexpr int64_t kChunkBytes = 819200;           // of x
constexpr int64_t kStepBytes = 20480;             // of a panel, a good half of the first-level cache
constexpr int64_t kItemPanels = 8;                // a thread takes about as many at a time
constexpr int kMostUnitPanels = 4;
constexpr int64_t kMostWaitingTiles = 3;          // tiles of rows that wait for a step of weights rather than work on it

template <class T>
using Input = typename Inner<T>::Input;

template <class T>
struct Product {
  const kvplan_packed_linear& args;
  int64_t row, rows;   // of this chunk
  const Input<T>* x;   // the chunk's rows as the inner loop reads them
  int64_t x_stride;
  int unit_panels;     // panels that are computed together and finished together
};

int64_t divided_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

bool is_gated(const kvplan_packed_linear& args) {
  return args.activation == KVPLAN_SILU_AND_MUL;
}

// Panels computed in one unit: so many that few rows still keep the multipliers busy, and pairs where gate meets up.
int unit_panels(const kvplan_packed_linear& args, int64_t rows) {
  if (rows == 1) return 4;
  return rows <= 3 || is_gated(args) ? 2 : 1;
}

template <class T>
using Tile = void (*)(const TileStep<T>&);

template <class T, Cache kAhead, int kAheadLines>
Tile<T> single_panel_tile(int64_t rows) {
  static constexpr Tile<T> kTiles[kPanelTileRows] = {
      run_tile<T, 1, 1, kAhead, kAheadLines>, run_tile<T, 2, 1, kAhead, kAheadLines>,
      run_tile<T, 3, 1, kAhead, kAheadLines>, run_tile<T, 4, 1, kAhead, kAheadLines>,
      run_tile<T, 5, 1, kAhead, kAheadLines>, run_tile<T, 6, 1, kAhead, kAheadLines>};
  return kTiles[rows - 1];
}

// The fewer tiles pass over a step of weights, the more lines of the next step each of them has to ask for, and the more
// of them are under way at a time: the second-level cache takes more requests than the first (measured:
// benchmarks/README.md).
template <class T>
Tile<T> tile_of(int64_t rows, int64_t tiles) {
  if (tiles == 1) return single_panel_tile<T, Cache::kSecondLevel, 4>(rows);
  if (tiles <= kMostWaitingTiles) return single_panel_tile<T, Cache::kSecondLevel, 2>(rows);
  return single_panel_tile<T, Cache::kFirstLevel, 1>(rows);
}

// One step of one panel for all rows, in tiles of nearly equal height.
template <class T>
void run_rows(const Product<T>& product, TileStep<T> step, int64_t ahead_bytes) {
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

// `panels` (at most the unit's) panels from `panel` on, all inputs: their sums.
template <class T>
void run_unit(const Product<T>& product, int64_t panel, int64_t panels, int64_t end_panel, float* sums) {
  constexpr int64_t kInputs = Inner<T>::kInputs;
  const int64_t inputs = packed_inputs<T>(product.args.inputs), groups = inputs / kInputs;
  const int64_t steps = divided_up(inputs * kPanelOutputs * int64_t{sizeof(T)}, kStepBytes);
  const T* weights = static_cast<const T*>(product.args.packed) + panel * inputs * kPanelOutputs;
  TileStep<T> step{};
  step.x_stride = product.x_stride;
  step.panel_stride = inputs * kPanelOutputs;
  step.sums_stride = kMostChunkRows * kPanelOutputs;
  const bool together = panels == product.unit_panels && panels > 1 && product.rows <= 3;
  for (int64_t c = 0; c < (together ? 1 : panels); ++c)
    for (int64_t i = 0; i < steps; ++i) {
      const int64_t begin = groups * i / steps * kInputs, end = groups * (i + 1) / steps * kInputs;
      step.x = product.x + begin;
      step.panel = weights + c * step.panel_stride + begin * kPanelOutputs;
      step.depth = end - begin;
      step.sums = sums + c * step.sums_stride;
      step.starts = i == 0;
      if (together) {
        step.ahead = reinterpret_cast<const char*>(step.panel);
        if (product.rows == 1) {
          run_tile<T, 1, 4, Cache::kSecondLevel, 1>(step);
        } else {
          const Tile<T> tile = product.rows == 2 ? run_tile<T, 2, 2, Cache::kSecondLevel, 1>
                                                 : run_tile<T, 3, 2, Cache::kSecondLevel, 1>;
          tile(step);
        }
        continue;
      }
      const int64_t bytes = step.depth * kPanelOutputs * int64_t{sizeof(T)};
      const bool more = panel + c + 1 < end_panel || i + 1 < steps;
      step.ahead = reinterpret_cast<const char*>(step.panel) + (more ? bytes : 0);
      run_rows(product, step, more ? bytes : 0);
    }
}

template <class T>
KVPLAN_INLINE Floats load_bias(const void* bias, int64_t first, int count) {
  if (bias == nullptr) return Floats{};
  const T* source = static_cast<const T*>(bias) + first;
  return count == kLanes ? load(source) : load_part(source, count);
}

KVPLAN_INLINE Floats activated(Floats value, int activation) {
  if (activation == KVPLAN_GELU_TANH) return gelu_tanh(value);
  if (activation == KVPLAN_GELU_ERF) return gelu_erf(value);
  return value;
}

// out = activation(sums + bias) for one panel, or silu(gate) * up for a pair of them.
template <class T>
void finish_panel(const Product<T>& product, int64_t panel, const float* sums) {
  const kvplan_packed_linear& args = product.args;
  const bool gated = is_gated(args);
  const int64_t outputs = gated ? args.outputs / 2 : args.outputs;
  const int64_t first = (gated ? panel / 2 : panel) * kPanelOutputs;
  for (int v = 0; v < kPanelVectors; ++v) {
    const int64_t column = first + v * kLanes;
    if (column >= outputs) return;
    const int count = outputs - column < kLanes ? static_cast<int>(outputs - column) : kLanes;
    const Floats bias = load_bias<T>(args.bias, column, count);
    const Floats up_bias = gated ? load_bias<T>(args.bias, outputs + column, count) : Floats{};
    for (int64_t r = 0; r < product.rows; ++r) {
      const float* source = sums + r * kPanelOutputs + v * kLanes;
      Floats value = load(source) + bias;
      if (gated) {
        value = silu(value) * (load(source + kMostChunkRows * kPanelOutputs) + up_bias);
      } else {
        value = activated(value, args.activation);
      }
      T* target = static_cast<T*>(args.out) + (product.row + r) * args.out_stride + column;
      if (count == kLanes) {
        store(target, value);
      } else {
        store_part(target, value, count);
      }
    }
  }
}

template <class T>
void run_panels(const Product<T>& product, int64_t begin, int64_t end) {
  static thread_local std::vector<float> memory(kMostUnitPanels * kMostChunkRows * kPanelOutputs);
  const int64_t stride = kMostChunkRows * kPanelOutputs;
  for (int64_t panel = begin; panel < end; panel += product.unit_panels) {
    const int64_t panels = end - panel < product.unit_panels ? end - panel : product.unit_panels;
    run_unit<T>(product, panel, panels, end, memory.data());
    for (int64_t c = 0; c < panels; c += is_gated(product.args) ? 2 : 1)
      finish_panel<T>(product, panel + c, memory.data() + c * stride);
  }
}

// Whether rows so many bytes apart may be read side by side. Rows whose addresses agree in their lower 12 bits take turns
// in the first-level cache (measured on Zen 4: a third of the speed at a stride of 4 KiB, two thirds at 2 KiB).
bool reads_well(int64_t stride_bytes) {
  return stride_bytes % 2048 != 0;
}

// Elements from row to row of a copy of x: rows an odd number of cache lines apart.
template <class T>
int64_t copied_stride(int64_t inputs) {
  constexpr int64_t kLine = 64 / sizeof(Input<T>);
  return divided_up(inputs, kLine) / 2 * 2 * kLine + kLine;
}

// A row of x as the inner loop reads it, filled up with zeros.
template <class T>
void copy_row(const T* source, Input<T>* target, int64_t inputs) {
  int64_t k = 0;
  if constexpr (sizeof(T) == sizeof(Input<T>)) {
    std::memcpy(target, source, sizeof(T) * static_cast<size_t>(inputs));
    k = inputs;
  } else {
    for (; k + kLanes <= inputs; k += kLanes) store(target + k, load(source + k));
    for (; k < inputs; ++k) target[k] = to_float(source[k]);
  }
  for (; k < packed_inputs<T>(inputs); ++k) target[k] = Input<T>{};
}

template <class T>
void run_chunk(Product<T> product, std::vector<Input<T>>& memory, int threads) {
  const kvplan_packed_linear& args = product.args;
  const T* x = static_cast<const T*>(args.x) + product.row * args.x_stride;
  const bool fits = sizeof(T) == sizeof(Input<T>) && packed_inputs<T>(args.inputs) == args.inputs;
  const bool direct = fits && (product.rows == 1 || reads_well(args.x_stride * int64_t{sizeof(T)}));
  product.unit_panels = unit_panels(args, product.rows);
  product.x_stride = direct ? args.x_stride : copied_stride<T>(args.inputs);
  if (!direct) memory.resize(static_cast<size_t>(product.rows * product.x_stride));
  Input<T>* copy = memory.data();
  product.x = direct ? reinterpret_cast<const Input<T>*>(x) : copy;
  const int64_t panels = divided_up(args.outputs, kPanelOutputs);
  const int64_t units = divided_up(panels, product.unit_panels);
  const int64_t rounds = divided_up(panels, kItemPanels * threads);
  const int64_t items = rounds * threads < units ? rounds * threads : units;
  const auto copy_rows = [&](int64_t row) {
    copy_row(x + row * args.x_stride, copy + row * product.x_stride, args.inputs);
  };
  const auto multiply = [&](int64_t item) {
    const int64_t end = units * (item + 1) / items * product.unit_panels;
    run_panels<T>(product, units * item / items * product.unit_panels, end < panels ? end : panels);
  };
  for_each_item_in_turn(direct ? 0 : product.rows, copy_rows, items, multiply, threads);
}

template <class T>
void multiply_packed(const kvplan_packed_linear& args, int threads) {
  static thread_local std::vector<Input<T>> memory;
  const int64_t by_cache = kChunkBytes / (args.inputs * int64_t{sizeof(Input<T>)});
  const int64_t most = by_cache > kMostChunkRows ? kMostChunkRows : (by_cache < 24 ? 24 : by_cache);
  const int64_t chunks = divided_up(args.rows, most);
  for (int64_t i = 0; i < chunks; ++i) {
    const int64_t begin = args.rows * i / chunks, end = args.rows * (i + 1) / chunks;
    run_chunk<T>(Product<T>{args, begin, end - begin, nullptr, 0, 1}, memory, threads);
  }
}

// Which row of the weight is the first of a panel: gate and up alternate where they are multiplied.
int64_t first_output(int64_t panel, int64_t outputs, bool gated) {
  return gated ? panel / 2 * kPanelOutputs + panel % 2 * (outputs / 2) : panel * kPanelOutputs;
}

template <class T>
void pack(const T* weight, T* packed, int64_t inputs, int64_t outputs, bool gated, int threads) {
  for_each_range(divided_up(outputs, kPanelOutputs), 1, threads, [&](int64_t begin, int64_t end) {
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

int kvplan_multiply_packed(const kvplan_packed_linear* args, int threads) {
  const int used = threads > 0 ? threads : 1;
  if (args->storage == KVPLAN_BFLOAT16) {
    kvplan::multiply_packed<kvplan::BFloat16>(*args, used);
  } else {
    kvplan::multiply_packed<float>(*args, used);
  }
  return KVPLAN_OK;
}
