// The parts of a product with a packed weight that packed_linear.cpp and mixture.cpp share: sums of some panels over some
// rows, and what is stored of them.
#pragma once

#include <cstring>
#include <vector>

#include "../../activation.h"
#include "../../amx.h"
#include "packed_tile.h"

namespace kvplan {

constexpr int64_t kMostChunkRows = 192;
constexpr int64_t kChunkBytes = 819200;  // of x
constexpr int kMostUnitPanels = 4;
constexpr int64_t kUnitSums = kMostUnitPanels * kMostChunkRows * kPanelOutputs;
constexpr int64_t kPanelSums = kMostChunkRows * kPanelOutputs;  // from panel to panel of a unit

template <class T>
using Input = typename Inner<T>::Input;

inline int64_t divided_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// Memory that begins on a cache line: vectors of sums that straddle two are loaded and stored at half the speed.
template <class T>
class LineMemory {
 public:
  explicit LineMemory(size_t count) : memory_(count + kLine / sizeof(T)) {}

  T* data() {
    const uintptr_t past = reinterpret_cast<uintptr_t>(memory_.data()) % kLine;
    return memory_.data() + (past == 0 ? 0 : (kLine - past) / sizeof(T));
  }

 private:
  static constexpr size_t kLine = 64;
  std::vector<T> memory_;
};

// Some rows of x and a packed weight.
template <class T>
struct PackedProduct {
  const T* packed;
  int64_t inputs;     // as published
  int64_t rows;       // at most kMostChunkRows
  const Input<T>* x;  // as the inner loop reads them
  int64_t x_stride;
  int unit_panels;    // panels that are computed together and finished together
};

constexpr int64_t kPairedTileRows = 32;  // up to so many, tiles read two panels in turn

// Panels computed in one unit: so many that few rows still keep the multipliers or the memory busy, and pairs where gate
// meets up.
template <class T>
int unit_panels(bool gated, int64_t rows) {
  if (rows == 1) return 4;
  if (rows == 2 || gated) return 2;
  return sizeof(T) == sizeof(BFloat16) && rows <= kPairedTileRows && tiles_are_used() ? 2 : 1;
}

void release_tiles();

// AMX's tiles as a thread has configured them, from one unit of a product to the next. They are given back afterwards: the
// system saves 8 KiB more of a thread that has them.
class ConfiguredTiles {
 public:
  ConfiguredTiles() = default;
  ConfiguredTiles(const ConfiguredTiles&) = delete;
  ConfiguredTiles& operator=(const ConfiguredTiles&) = delete;
  ~ConfiguredTiles() {
    if (rows != 0) release_tiles();
  }

  int64_t rows = 0;  // that they multiply together; 0: not configured
  int64_t row_bytes = 0;  // of x, at a time: products with quantised weights
};

// A thread's memory for a unit's sums.
inline float* unit_sums() {
  static thread_local LineMemory<float> memory(kUnitSums);
  return memory.data();
}

// Sums of `panels` (at most the unit's) panels from `panel` on, over all inputs: [panels, kMostChunkRows, kPanelOutputs].
// end_panel: where the caller stops reading, so that nothing behind it is prefetched.
template <class T>
void multiply_unit(const PackedProduct<T>& product, int64_t panel, int64_t panels, int64_t end_panel, float* sums,
                   ConfiguredTiles& tiles);

extern template void multiply_unit(const PackedProduct<float>&, int64_t, int64_t, int64_t, float*, ConfiguredTiles&);
extern template void multiply_unit(const PackedProduct<BFloat16>&, int64_t, int64_t, int64_t, float*, ConfiguredTiles&);

// Panels of a weight: gate's and up's alternate, each half filled up to whole ones.
inline int64_t num_panels(int64_t outputs, bool gated) {
  return gated ? 2 * divided_up(outputs / 2, kPanelOutputs) : divided_up(outputs, kPanelOutputs);
}

// Which row of the weight is the first of a panel: gate and up alternate where they are multiplied.
inline int64_t first_output(int64_t panel, int64_t outputs, bool gated) {
  return gated ? panel / 2 * kPanelOutputs + panel % 2 * (outputs / 2) : panel * kPanelOutputs;
}

// Fills the panels of a weight [outputs, inputs].
template <class T>
void pack(const T* weight, T* packed, int64_t inputs, int64_t outputs, bool gated, int threads);

extern template void pack(const float*, float*, int64_t, int64_t, bool, int);
extern template void pack(const BFloat16*, BFloat16*, int64_t, int64_t, bool, int);

// Rows of x that are multiplied in one go, so that they stay in the second-level cache.
template <class T>
int64_t chunk_rows(int64_t inputs) {
  const int64_t by_cache = kChunkBytes / (inputs * int64_t{sizeof(Input<T>)});
  return by_cache > kMostChunkRows ? kMostChunkRows : (by_cache < 24 ? 24 : by_cache);
}

// Whether rows so many elements apart can be read where they lie. Rows whose addresses agree in their lower 12 bits take
// turns in the first-level cache (measured on Zen 4: a third of the speed at a stride of 4 KiB, two thirds at 2 KiB).
template <class T>
bool reads_in_place(int64_t inputs, int64_t stride, int64_t rows) {
  const bool fits = sizeof(T) == sizeof(Input<T>) && packed_inputs<T>(inputs) == inputs;
  return fits && (rows == 1 || stride * int64_t{sizeof(T)} % 2048 != 0);
}

// Elements from row to row of a copy of x: rows an odd number of cache lines apart.
template <class T>
int64_t copied_stride(int64_t inputs) {
  constexpr int64_t kLine = 64 / sizeof(Input<T>);
  return divided_up(inputs, kLine) / 2 * 2 * kLine + kLine;
}

// A row of x as the inner loop reads it, filled up with zeros.
template <class T, class X>
void copy_row(const T* source, X* target, int64_t inputs) {
  int64_t k = 0;
  if constexpr (sizeof(T) == sizeof(X)) {
    std::memcpy(target, source, sizeof(T) * static_cast<size_t>(inputs));
    k = inputs;
  } else {
    for (; k + kLanes <= inputs; k += kLanes) store(target + k, load(source + k));
    for (; k < inputs; ++k) target[k] = to_float(source[k]);
  }
  for (; k < packed_inputs<T>(inputs); ++k) target[k] = X{};
}

template <class T>
KVPLAN_INLINE Floats load_bias(const T* bias, int64_t first, int count) {
  if (bias == nullptr) return Floats{};
  return count == kLanes ? load(bias + first) : load_part(bias + first, count);
}

// Where a product's columns go, and what becomes of them on the way. T: of the bias, Out: of what is stored.
template <class T, class Out>
struct PanelResult {
  const T* bias;    // [outputs], gate's before up's, or null
  Out* out;         // [rows, out_stride]
  int64_t out_stride;
  int64_t columns;  // of out
  int activation;
  float limit;      // of the activation, see gated()
  bool past_caches = false;

  // Stores one panel, or the pair of gate and up that begins at `panel`.
  void operator()(int64_t panel, int64_t rows, const float* sums) const {
    const bool pair = is_gated(activation);
    const int64_t first = (pair ? panel / 2 : panel) * kPanelOutputs;
    if (bias == nullptr && activation == KVPLAN_NO_ACTIVATION && first + kPanelOutputs <= columns && !past_caches)
      return store_plainly(first, rows, sums);
    // Row by row: where rows of out are a power of two apart, their lines take turns in one set of the first-level cache.
    for (int64_t r = 0; r < rows; ++r) {
      for (int v = 0; v < kPanelVectors; ++v) {
        const int64_t column = first + v * kLanes;
        if (column >= columns) break;
        const int count = columns - column < kLanes ? static_cast<int>(columns - column) : kLanes;
        const Floats own = load_bias(bias, column, count);
        const Floats up_bias = pair ? load_bias(bias, columns + column, count) : Floats{};
        const float* source = sums + r * kPanelOutputs + v * kLanes;
        Floats value = load(source) + own;
        if (pair) {
          value = gated(value, load(source + kPanelSums) + up_bias, activation, limit);
        } else {
          value = activated(value, activation);
        }
        Out* target = out + r * out_stride + column;
        if (past_caches) {
          store_past_caches(target, value);
        } else if (count == kLanes) {
          store(target, value);
        } else {
          store_part(target, value, count);
        }
      }
    }
  }

 private:
  // A whole panel as it is.
  void store_plainly(int64_t first, int64_t rows, const float* sums) const {
    for (int64_t r = 0; r < rows; ++r)
      for (int v = 0; v < kPanelVectors; ++v)
        store(out + r * out_stride + first + v * kLanes, load(sums + r * kPanelOutputs + v * kLanes));
  }
};

// Whether a product has so many columns that the caches have lost their lines since the step before: a head's logits.
// Written past the caches they need not be read first, which the stores would wait for. Lines must be written whole.
inline bool goes_past_caches(const kvplan_packed_linear& args) {
  constexpr int64_t kManyColumns = 16384;
  const int64_t element = args.storage == KVPLAN_BFLOAT16 ? 2 : 4;
  const bool has_whole_lines = reinterpret_cast<uintptr_t>(args.out) % 64 == 0 && args.out_stride * element % 64 == 0 &&
                               args.outputs % kPanelOutputs == 0;
  const bool is_plain = args.activation == KVPLAN_NO_ACTIVATION;
  return kStoresPastCaches && args.outputs >= kManyColumns && is_plain && has_whole_lines;
}

// The product with a quantised weight (args.format).
void multiply_quantised(const kvplan_packed_linear& args, int threads);

// Panels [0, panels) as items of a few whole units, as many for each thread.
class PanelItems {
 public:
  PanelItems(int64_t panels, int64_t unit, int threads)
      : panels_(panels), unit_(unit), units_(divided_up(panels, unit)) {
    constexpr int64_t kItemPanels = 4;  // a thread takes about as many at a time
    const int64_t wanted = divided_up(panels, kItemPanels * threads) * threads;
    count_ = wanted < units_ ? wanted : units_;
  }

  int64_t count() const { return count_; }
  int64_t begin(int64_t item) const { return units_ * item / count_ * unit_; }

  int64_t end(int64_t item) const {
    const int64_t end = begin(item + 1);
    return end < panels_ ? end : panels_;
  }

 private:
  int64_t panels_, unit_, units_, count_;
};

// Panels [begin, end) of a product, unit by unit: finish(panel, rows, sums) for each panel, or for each pair of them.
// sums: memory for kUnitSums. read_on: the end of what the thread reads without a break, where that is not `end`.
template <class T, class Finish>
void run_panels(const PackedProduct<T>& product, int64_t begin, int64_t end, bool pairs, float* sums, const Finish& finish,
                int64_t read_on = 0) {
  const int64_t end_panel = read_on > end ? read_on : end;
  ConfiguredTiles tiles;
  for (int64_t panel = begin; panel < end; panel += product.unit_panels) {
    const int64_t panels = end - panel < product.unit_panels ? end - panel : product.unit_panels;
    multiply_unit<T>(product, panel, panels, end_panel, sums, tiles);
    for (int64_t c = 0; c < panels; c += pairs ? 2 : 1) finish(panel + c, product.rows, sums + c * kPanelSums);
  }
}

}  // namespace kvplan
