// A matrix product with weights as they are published, [outputs, inputs], for few rows: a decode step's batch.
//
// At such sizes the product costs what reading the weights costs, and a BLAS that packs its operands in every call pays
// for them several times over. Here a tile of kTileRows x kTileOutputs dot products runs along the inputs: each weight is
// read from memory once, each vector of it is used by kTileRows rows straight from registers, and nothing is packed.
#include <vector>

#include "../../include/kvplan_cpu.h"
#include "../parallel.h"
#include "../simd.h"

namespace kvplan {
namespace {

constexpr int kTileOutputs = 4;
constexpr int kTileRows = kLanes >= 16 ? 6 : 3;  // accumulators: 24 of AVX-512's 32 registers, 12 of AVX2's 16
constexpr int64_t kPanelOutputs = 64;            // outputs that a thread takes at a time
constexpr int64_t kChunkRows = 48;               // rows of x whose floats stay in the second-level cache

struct Product {
  const float* x;  // [rows, inputs], dense
  int64_t inputs;
  void* out;
  int64_t out_stride;
  const void* weight;
  const void* bias;
};

// The dot products of R rows of x with C rows of the weight.
template <class T, int R, int C>
KVPLAN_INLINE void dot_tile(const float* x, const T* weight, int64_t inputs, Floats (&sums)[R][C]) {
  for (auto& row : sums)
    for (Floats& sum : row) sum = Floats{};
  int64_t k = 0;
  for (; k + kLanes <= inputs; k += kLanes) {
    Floats weights[C];
    for (int c = 0; c < C; ++c) weights[c] = load(weight + c * inputs + k);
    for (int r = 0; r < R; ++r) {
      const Floats value = load(x + r * inputs + k);
      for (int c = 0; c < C; ++c) sums[r][c] += value * weights[c];
    }
  }
  const int rest = static_cast<int>(inputs - k);
  if (rest == 0) return;
  for (int c = 0; c < C; ++c) {
    const Floats weights = load_part(weight + c * inputs + k, rest);
    for (int r = 0; r < R; ++r) sums[r][c] += load_part(x + r * inputs + k, rest) * weights;
  }
}

KVPLAN_INLINE void put(float* target, float value) {
  *target = value;
}

KVPLAN_INLINE void put(BFloat16* target, float value) {
  store_part(target, splat(value), 1);
}

template <class T, int R, int C>
KVPLAN_INLINE void write_tile(const Product& product, const Floats (&sums)[R][C], int64_t row, int64_t output) {
  const T* bias = static_cast<const T*>(product.bias);
  for (int r = 0; r < R; ++r) {
    T* target = static_cast<T*>(product.out) + (row + r) * product.out_stride + output;
    for (int c = 0; c < C; ++c) put(target + c, sum_of(sums[r][c]) + (bias ? to_float(bias[output + c]) : 0.0f));
  }
}

template <class T, int C>
void column_tile(const Product& product, int64_t row, int64_t end_row, int64_t output) {
  const T* weight = static_cast<const T*>(product.weight) + output * product.inputs;
  for (; row + kTileRows <= end_row; row += kTileRows) {
    Floats sums[kTileRows][C];
    dot_tile<T, kTileRows, C>(product.x + row * product.inputs, weight, product.inputs, sums);
    write_tile<T, kTileRows, C>(product, sums, row, output);
  }
  for (; row < end_row; ++row) {
    Floats sums[1][C];
    dot_tile<T, 1, C>(product.x + row * product.inputs, weight, product.inputs, sums);
    write_tile<T, 1, C>(product, sums, row, output);
  }
}

template <class T>
void panel(const Product& product, int64_t row, int64_t end_row, int64_t output, int64_t end_output) {
  for (; output + kTileOutputs <= end_output; output += kTileOutputs)
    column_tile<T, kTileOutputs>(product, row, end_row, output);
  for (; output < end_output; ++output) column_tile<T, 1>(product, row, end_row, output);
}

template <class T>
void linear(const Product& product, int64_t rows, int64_t outputs, int threads) {
  const int64_t panels = (outputs + kPanelOutputs - 1) / kPanelOutputs;
  for (int64_t row = 0; row < rows; row += kChunkRows) {
    const int64_t end_row = row + kChunkRows < rows ? row + kChunkRows : rows;
    for_each_item(panels, threads, [&](int, int64_t item) {
      const int64_t output = item * kPanelOutputs;
      const int64_t end_output = output + kPanelOutputs < outputs ? output + kPanelOutputs : outputs;
      panel<T>(product, row, end_row, output, end_output);
    });
  }
}

// x as dense floats: converted once, not once for every output.
template <class T>
const float* widened(const void* x, int64_t x_stride, int64_t rows, int64_t inputs, std::vector<float>& memory) {
  memory.resize(static_cast<size_t>(rows * inputs));
  const T* source = static_cast<const T*>(x);
  for (int64_t row = 0; row < rows; ++row) {
    float* target = memory.data() + row * inputs;
    int64_t k = 0;
    for (; k + kLanes <= inputs; k += kLanes) store(target + k, load(source + row * x_stride + k));
    for (; k < inputs; ++k) target[k] = to_float(source[row * x_stride + k]);
  }
  return memory.data();
}

}  // namespace
}  // namespace kvplan

int kvplan_linear(const void* x, int64_t x_stride, const void* weight, const void* bias, void* out, int64_t out_stride,
                  int64_t rows, int64_t inputs, int64_t outputs, int storage, int threads) {
  using namespace kvplan;
  static thread_local std::vector<float> memory;
  Product product{nullptr, inputs, out, out_stride, weight, bias};
  if (storage == KVPLAN_BFLOAT16) {
    product.x = widened<BFloat16>(x, x_stride, rows, inputs, memory);
    linear<BFloat16>(product, rows, outputs, threads);
  } else {
    const bool dense = x_stride == inputs || rows == 1;
    product.x = dense ? static_cast<const float*>(x) : widened<float>(x, x_stride, rows, inputs, memory);
    linear<float>(product, rows, outputs, threads);
  }
  return KVPLAN_OK;
}
