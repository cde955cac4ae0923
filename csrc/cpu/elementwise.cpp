// Activations and rotary positions.
#include "../include/kvplan_cpu.h"
#include "parallel.h"
#include "simd_math.h"

namespace kvplan {
namespace {

// Rows are cut into pieces of this many columns, so that one long row still uses all threads.
constexpr int64_t kPiece = 4096;

// body(row, first column, number of columns) over a [rows, width] tensor.
template <class Body>
void for_each_piece(int64_t rows, int64_t width, int threads, const Body& body) {
  const int64_t pieces = (width + kPiece - 1) / kPiece;
  const int64_t grain = row_grain(width < kPiece ? width : kPiece);
  for_each_range(rows * pieces, grain, threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i % pieces * kPiece;
      body(i / pieces, first, first + kPiece < width ? kPiece : width - first);
    }
  });
}

template <class T, class Function>
void map_rows(void* x, int64_t stride, int64_t rows, int64_t width, int threads, const Function& function) {
  for_each_piece(rows, width, threads, [&](int64_t row, int64_t first, int64_t count) {
    T* values = static_cast<T*>(x) + row * stride + first;
    int64_t column = 0;
    for (; column + kLanes <= count; column += kLanes) store(values + column, function(load(values + column)));
    const int rest = static_cast<int>(count - column);
    if (rest > 0) store_part(values + column, function(load_part(values + column, rest)), rest);
  });
}

template <class Function>
int map_storage(void* x, int64_t stride, int64_t rows, int64_t width, int storage, int threads,
                const Function& function) {
  if (storage == KVPLAN_BFLOAT16) {
    map_rows<BFloat16>(x, stride, rows, width, threads, function);
  } else {
    map_rows<float>(x, stride, rows, width, threads, function);
  }
  return KVPLAN_OK;
}

template <class T>
void silu_and_mul(const void* gate_up, int64_t in_stride, void* out, int64_t out_stride, int64_t rows, int64_t width,
                  int threads) {
  for_each_piece(rows, width, threads, [&](int64_t row, int64_t first, int64_t count) {
    const T* gate = static_cast<const T*>(gate_up) + row * in_stride + first;
    const T* up = gate + width;
    T* target = static_cast<T*>(out) + row * out_stride + first;
    int64_t column = 0;
    for (; column + kLanes <= count; column += kLanes)
      store(target + column, silu(load(gate + column)) * load(up + column));
    const int rest = static_cast<int>(count - column);
    if (rest > 0)
      store_part(target + column, silu(load_part(gate + column, rest)) * load_part(up + column, rest), rest);
  });
}

// One head's halves: (a, b) -> (a cos - b sin, b cos + a sin).
template <class T>
KVPLAN_INLINE void rotate_head(T* head, const float* cosines, const float* sines, int64_t half) {
  T* a = head;
  T* b = head + half;
  int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const Floats first = load(a + i), second = load(b + i), cosine = load(cosines + i), sine = load(sines + i);
    store(a + i, first * cosine - second * sine);
    store(b + i, second * cosine + first * sine);
  }
  if (i < half) {
    const int rest = static_cast<int>(half - i);
    const Floats first = load_part(a + i, rest), second = load_part(b + i, rest);
    const Floats cosine = load_part(cosines + i, rest), sine = load_part(sines + i, rest);
    store_part(a + i, first * cosine - second * sine, rest);
    store_part(b + i, second * cosine + first * sine, rest);
  }
}

template <class T>
void rotate_rows(void* x, int64_t row_stride, int64_t head_stride, const int64_t* positions, const float* cos_sin,
                 int64_t tokens, int64_t heads, int64_t rotary, int threads) {
  for_each_range(tokens, row_grain(heads * rotary), threads, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      const float* cosines = cos_sin + positions[token] * rotary;
      T* row = static_cast<T*>(x) + token * row_stride;
      for (int64_t head = 0; head < heads; ++head)
        rotate_head(row + head * head_stride, cosines, cosines + rotary / 2, rotary / 2);
    }
  });
}

}  // namespace
}  // namespace kvplan

int kvplan_rope(void* x, int64_t row_stride, int64_t head_stride, const int64_t* positions, const float* cos_sin,
                int64_t table_rows, int64_t tokens, int64_t heads, int64_t rotary, int storage, int threads) {
  for (int64_t i = 0; i < tokens; ++i)
    if (positions[i] < 0 || positions[i] >= table_rows) return KVPLAN_BAD_INDEX;
  if (storage == KVPLAN_BFLOAT16) {
    kvplan::rotate_rows<kvplan::BFloat16>(x, row_stride, head_stride, positions, cos_sin, tokens, heads, rotary,
                                          threads);
  } else {
    kvplan::rotate_rows<float>(x, row_stride, head_stride, positions, cos_sin, tokens, heads, rotary, threads);
  }
  return KVPLAN_OK;
}

int kvplan_silu_and_mul(const void* gate_up, int64_t in_stride, void* out, int64_t out_stride, int64_t rows,
                        int64_t width, int storage, int threads) {
  if (storage == KVPLAN_BFLOAT16) {
    kvplan::silu_and_mul<kvplan::BFloat16>(gate_up, in_stride, out, out_stride, rows, width, threads);
  } else {
    kvplan::silu_and_mul<float>(gate_up, in_stride, out, out_stride, rows, width, threads);
  }
  return KVPLAN_OK;
}

int kvplan_gelu_tanh(void* x, int64_t stride, int64_t rows, int64_t width, int storage, int threads) {
  return kvplan::map_storage(x, stride, rows, width, storage, threads,
                             [](kvplan::Floats v) { return kvplan::gelu_tanh(v); });
}

int kvplan_gelu_erf(void* x, int64_t stride, int64_t rows, int64_t width, int storage, int threads) {
  return kvplan::map_storage(x, stride, rows, width, storage, threads,
                             [](kvplan::Floats v) { return kvplan::gelu_erf(v); });
}
