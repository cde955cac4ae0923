// The greedy sampler's argmax, without a float32 copy of bfloat16 logits.
#include <algorithm>
#include <limits>

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

// Columns whose maximum is taken at once.
constexpr int64_t kBlock = 1024;

// The largest of `count` values, NaNs left out. poison: becomes a NaN where one of them is a NaN or infinite.
template <class T>
float largest_of(const T* row, int64_t count, Floats& poison) {
  constexpr int kChains = 4;  // a maximum takes a few cycles
  Floats largest[kChains], odd[kChains] = {};
  for (Floats& each : largest) each = splat(-std::numeric_limits<float>::infinity());
  const auto take = [&](Floats values, int chain) {
    largest[chain] = maximum(values, largest[chain]);
    odd[chain] += values * 0.0f;
  };
  int64_t column = 0;
  for (; column + kChains * kLanes <= count; column += kChains * kLanes)
    for (int chain = 0; chain < kChains; ++chain) take(load(row + column + chain * kLanes), chain);
  for (; column + kLanes <= count; column += kLanes) take(load(row + column), 0);
  poison += (odd[0] + odd[1]) + (odd[2] + odd[3]);
  float best = maximum_of(maximum(maximum(largest[0], largest[1]), maximum(largest[2], largest[3])));
  for (; column < count; ++column) {
    const float value = to_float(row[column]);
    poison += splat(value * 0.0f);
    if (value > best) best = value;
  }
  return best;
}

// The first of the largest values: only the block that has it is searched for its place.
template <class T>
int64_t argmax_row(const T* row, int64_t width) {
  Floats poison = {};
  float best = -std::numeric_limits<float>::infinity();
  int64_t best_block = 0;
  for (int64_t block = 0; block < width; block += kBlock) {
    const float largest = largest_of(row + block, std::min(kBlock, width - block), poison);
    if (largest > best) {
      best = largest;
      best_block = block;
    }
  }
  const float odd = sum_of(poison);
  if (odd != odd) {
    const int64_t nan = first_nan(row, width);
    if (nan < width) return nan;
  }
  int64_t column = best_block;
  while (to_float(row[column]) != best) ++column;
  return column;
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
