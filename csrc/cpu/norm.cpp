// RMSNorm and LayerNorm over rows, with the residual addition before them.
#include <cmath>

#include "../include/kvplan_cpu.h"
#include "parallel.h"
#include "simd.h"

namespace kvplan {
namespace {

// Sum over a row of term(vector), in four independent chains.
template <class T, class Term>
KVPLAN_INLINE float sum_row(const T* row, int64_t width, const Term& term) {
  Floats sums[4] = {};
  int64_t column = 0;
  for (; column + 4 * kLanes <= width; column += 4 * kLanes)
    for (int i = 0; i < 4; ++i) sums[i] += term(load(row + column + i * kLanes));
  for (; column + kLanes <= width; column += kLanes) sums[0] += term(load(row + column));
  float total = sum_of((sums[0] + sums[1]) + (sums[2] + sums[3]));
  if (column < width) {
    const int rest = static_cast<int>(width - column);
    const Floats last = term(load_part(row + column, rest));
    for (int i = 0; i < rest; ++i) total += last[i];
  }
  return total;
}

template <class T>
KVPLAN_INLINE void add_row(const T* delta, T* residual, int64_t width) {
  int64_t column = 0;
  for (; column + kLanes <= width; column += kLanes)
    store(residual + column, load(residual + column) + load(delta + column));
  if (column < width) {
    const int rest = static_cast<int>(width - column);
    store_part(residual + column, load_part(residual + column, rest) + load_part(delta + column, rest), rest);
  }
}

// out = (x - mean) * scale * weight + bias
template <class T>
KVPLAN_INLINE void scale_row(const T* x, float mean, float scale, const T* weight, const T* bias, T* out,
                             int64_t width) {
  int64_t column = 0;
  for (; column + kLanes <= width; column += kLanes) {
    Floats value = (load(x + column) - mean) * scale * load(weight + column);
    if (bias != nullptr) value += load(bias + column);
    store(out + column, value);
  }
  if (column < width) {
    const int rest = static_cast<int>(width - column);
    Floats value = (load_part(x + column, rest) - mean) * scale * load_part(weight + column, rest);
    if (bias != nullptr) value += load_part(bias + column, rest);
    store_part(out + column, value, rest);
  }
}

// Where a row begins.
template <class T>
T* row_at(T* rows, int64_t stride, const kvplan_norm& args, int64_t row) {
  return args.heads > 1 ? rows + row / args.heads * stride + row % args.heads * args.width : rows + row * stride;
}

// Asks for what a row is made from: other threads have mostly written it, and it is needed at once.
template <class T>
KVPLAN_INLINE void ask_for_row(const kvplan_norm& args, int64_t row) {
  const int64_t bytes = args.width * int64_t{sizeof(T)};
  prefetch_near(row_at(static_cast<const T*>(args.x), args.x_stride, args, row), bytes);
  if (args.delta != nullptr)
    prefetch_near(row_at(static_cast<const T*>(args.delta), args.delta_stride, args, row), bytes);
}

template <class T, bool kCentred>
void normalise_row(const kvplan_norm& args, int64_t row) {
  T* x = row_at(static_cast<T*>(args.x), args.x_stride, args, row);
  if (args.delta != nullptr)
    add_row(row_at(static_cast<const T*>(args.delta), args.delta_stride, args, row), x, args.width);
  const float width = static_cast<float>(args.width);
  const float mean = kCentred ? sum_row(x, args.width, [](Floats v) { return v; }) / width : 0.0f;
  const float variance = sum_row(x, args.width, [mean](Floats v) { return (v - mean) * (v - mean); }) / width;
  scale_row(x, mean, 1.0f / std::sqrt(variance + args.eps), static_cast<const T*>(args.weight),
            static_cast<const T*>(args.bias), row_at(static_cast<T*>(args.out), args.out_stride, args, row), args.width);
}

template <class T, bool kCentred>
void normalise_rows(const kvplan_norm& args, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    if (row + 1 < end) ask_for_row<T>(args, row + 1);
    normalise_row<T, kCentred>(args, row);
  }
}

template <bool kCentred>
int normalise(const kvplan_norm& args, int threads) {
  for_each_range(args.rows, row_grain(args.width), threads, [&](int64_t begin, int64_t end) {
    if (args.storage == KVPLAN_BFLOAT16) {
      normalise_rows<BFloat16, kCentred>(args, begin, end);
    } else {
      normalise_rows<float, kCentred>(args, begin, end);
    }
  });
  return KVPLAN_OK;
}

}  // namespace
}  // namespace kvplan

int kvplan_rms_norm(const kvplan_norm* args, int threads) {
  return kvplan::normalise<false>(*args, threads);
}

int kvplan_layer_norm(const kvplan_norm* args, int threads) {
  return kvplan::normalise<true>(*args, threads);
}
