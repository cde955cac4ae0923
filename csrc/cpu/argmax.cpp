// The greedy sampler's argmax, without a float32 copy of bfloat16 logits.
#include "../include/kvplan_cpu.h"
#include "parallel.h"
#include "simd.h"

namespace kvplan {
namespace {

// The first NaN, if any.
template <class T>
int64_t first_nan(const T* row, int64_t width) {
  for (int64_t i = 0; i < width; ++i) {
    const float value = to_float(row[i]);
    if (value != value) return i;
  }
  return width;
}

// Each lane keeps the first of its largest values; the lanes are compared at the end, lower index first.
template <class T>
int64_t argmax_row(const T* row, int64_t width) {
  float best = to_float(row[0]);
  int64_t best_index = 0;
  bool nan_seen = best != best;
  int64_t column = 0;
  if (width >= kLanes) {
    Floats largest = load(row);
    Ints where = {}, lane = {}, odd = largest != largest;
    for (int i = 0; i < kLanes; ++i) lane[i] = i;
    for (column = kLanes; column + kLanes <= width; column += kLanes) {
      const Floats values = load(row + column);
      const Ints better = values > largest;
      odd |= values != values;
      largest = select(better, values, largest);
      where = (better & static_cast<int32_t>(column)) | (~better & where);
    }
    where += lane;
    best = largest[0];
    for (int i = 0; i < kLanes; ++i) {
      nan_seen |= odd[i] != 0;
      if (largest[i] > best || (largest[i] == best && (where[i] < best_index || i == 0))) {
        best = largest[i];
        best_index = where[i];
      }
    }
  }
  for (; column < width; ++column) {
    const float value = to_float(row[column]);
    nan_seen |= value != value;
    if (value > best) {
      best = value;
      best_index = column;
    }
  }
  return nan_seen ? first_nan(row, width) : best_index;
}

template <class T>
void argmax_rows(const void* x, int64_t stride, int64_t* out, int64_t rows, int64_t width, int threads) {
  for_each_range(rows, row_grain(width), threads, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) out[row] = argmax_row(static_cast<const T*>(x) + row * stride, width);
  });
}

}  // namespace
}  // namespace kvplan

int kvplan_argmax_rows(const void* x, int64_t stride, int64_t* out, int64_t rows, int64_t width, int storage,
                       int threads) {
  if (storage == KVPLAN_BFLOAT16) {
    kvplan::argmax_rows<kvplan::BFloat16>(x, stride, out, rows, width, threads);
  } else {
    kvplan::argmax_rows<float>(x, stride, out, rows, width, threads);
  }
  return KVPLAN_OK;
}
