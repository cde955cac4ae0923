// The inner loops of attention: scores of a few query rows against cache rows, and products of small tiles.
//
// Cache rows (keys or values of one token and head) are reached through an array of pointers, so that no loop here
// knows about blocks: block size 1 and block size 128 run the same code.
#pragma once

#include "ahead.h"

namespace kvplan {

// Tokens of one tile at most: a multiple of every lane count used.
constexpr int kTileTokens = 64;

// Query rows whose partial sums stay in registers together with four tokens' (AVX2 has 16 registers, AVX-512 32).
constexpr int kDirectRows = kLanes == 16 ? 4 : 3;

// Register tile of the packed product: 6 x 2 fills AVX2's 16 registers, 6 x 4 AVX-512's and NEON's 32.
constexpr int kPackedRows = 6;
constexpr int kPackedVectors = kLanes == 8 ? 2 : 4;

constexpr int padded_to_lanes(int64_t width) {
  return static_cast<int>((width + kLanes - 1) / kLanes * kLanes);
}

// scores[r][t] = query[r] . key[t] for kRows rows and the four tokens whose keys lie `offset` behind keys[0..3].
// query [kRows, padded head] with zeros beyond head_size; scores [kRows, score_stride]
template <class T, int kRows>
KVPLAN_INLINE void score_four_tokens(const float* query, int64_t query_stride, const T* const* keys, int64_t offset,
                                     int head_size, float* scores, int64_t score_stride) {
  const T* const rows[4] = {keys[0] + offset, keys[1] + offset, keys[2] + offset, keys[3] + offset};
  Floats sums[kRows][4] = {};
  int column = 0;
  for (; column + kLanes <= head_size; column += kLanes) {
    const Floats key[4] = {load(rows[0] + column), load(rows[1] + column), load(rows[2] + column),
                           load(rows[3] + column)};
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Floats q = load(query + r * query_stride + column);
#pragma GCC unroll 4
      for (int t = 0; t < 4; ++t) sums[r][t] += q * key[t];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const Floats4 four = sums_of_four(sums[r][0], sums[r][1], sums[r][2], sums[r][3]);
    std::memcpy(scores + r * score_stride, &four, sizeof four);
  }
  for (; column < head_size; ++column)
    for (int r = 0; r < kRows; ++r)
      for (int t = 0; t < 4; ++t)
        scores[r * score_stride + t] += query[r * query_stride + column] * to_float(rows[t][column]);
}

// out[r][0 .. kVectors * kLanes) (+)= sum over k of left[r][k] * right[k][offset ..], for kRows rows.
// left [kRows, depth], right: depth row pointers, out [kRows, out_stride]. What `out` holds is multiplied with shrink
// [kRows] before the sum is added to it. Of `ahead` (or null) as many lines are asked for as are read.
template <class T, int kRows, int kVectors, bool kAccumulate>
KVPLAN_INLINE void multiply_tile(const float* left, int64_t left_stride, const T* const* right, int64_t offset,
                                 int depth, float* out, int64_t out_stride, const float* shrink, Ahead* ahead) {
  constexpr int kRead = kVectors * kLanes * static_cast<int>(sizeof(T));
  constexpr int kEvery = kRead < 64 * Ahead::kTurnLines ? 64 * Ahead::kTurnLines / kRead : 1;
  Floats sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v)
      sums[r][v] = kAccumulate ? load(out + r * out_stride + v * kLanes) * shrink[r] : Floats{};
  for (int k = 0; k < depth; ++k) {
    const T* row = right[k] + offset;
    if (ahead != nullptr && k % kEvery == 0) ahead->ask_turn();
    Floats values[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) values[v] = load(row + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const float factor = left[r * left_stride + k];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[r][v] += factor * values[v];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) store(out + r * out_stride + v * kLanes, sums[r][v]);
}

// The same for any number of rows: kRows at a time, then the rest.
template <class T, int kRows, int kVectors, bool kAccumulate>
KVPLAN_INLINE void multiply_rows(const float* left, int64_t left_stride, const T* const* right, int64_t offset,
                                 int rows, int depth, float* out, int64_t out_stride, const float* shrink, Ahead* ahead) {
  int r = 0;
  for (; r + kRows <= rows; r += kRows)
    multiply_tile<T, kRows, kVectors, kAccumulate>(left + r * left_stride, left_stride, right, offset, depth,
                                                   out + r * out_stride, out_stride, kAccumulate ? shrink + r : nullptr,
                                                   r == 0 ? ahead : nullptr);
  if constexpr (kRows > 1) {
    if (r < rows)
      multiply_rows<T, kRows - 1, kVectors, kAccumulate>(left + r * left_stride, left_stride, right, offset, rows - r,
                                                         depth, out + r * out_stride, out_stride,
                                                         kAccumulate ? shrink + r : nullptr, r == 0 ? ahead : nullptr);
  }
}

// The last width % kLanes columns of the same sum, into padded rows of `out`.
template <class T>
void multiply_tail(const float* left, int64_t left_stride, const T* const* right, int64_t offset, int width, int rows,
                   int depth, float* out, int64_t out_stride, const float* shrink) {
  for (int r = 0; r < rows; ++r) store(out + r * out_stride, load(out + r * out_stride) * shrink[r]);
  for (int k = 0; k < depth; ++k) {
    const Floats values = load_part(right[k] + offset, width);
    for (int r = 0; r < rows; ++r) {
      float* target = out + r * out_stride;
      store(target, load(target) + left[r * left_stride + k] * values);
    }
  }
}

// out [rows, width] (+)= left [rows, depth] * right [depth, offset + width], in register tiles of kRows x kVectors.
// With kAccumulate, shrink [rows] is as in multiply_tile; without, width must be a multiple of kLanes.
template <class T, int kRows, int kVectors, bool kAccumulate>
void multiply(const float* left, int64_t left_stride, const T* const* right, int64_t offset, int width, int rows,
              int depth, float* out, int64_t out_stride, const float* shrink = nullptr, Ahead* ahead = nullptr) {
  int column = 0;
  for (; column + kVectors * kLanes <= width; column += kVectors * kLanes)
    multiply_rows<T, kRows, kVectors, kAccumulate>(left, left_stride, right, offset + column, rows, depth, out + column,
                                                   out_stride, shrink, ahead);
  if (kVectors > 2 && column + 2 * kLanes <= width) {
    multiply_rows<T, kRows, 2, kAccumulate>(left, left_stride, right, offset + column, rows, depth, out + column,
                                            out_stride, shrink, nullptr);
    column += 2 * kLanes;
  }
  if (column + kLanes <= width) {
    multiply_rows<T, kRows, 1, kAccumulate>(left, left_stride, right, offset + column, rows, depth, out + column,
                                            out_stride, shrink, nullptr);
    column += kLanes;
  }
  if (column < width)
    multiply_tail(left, left_stride, right, offset + column, width - column, rows, depth, out + column, out_stride,
                  shrink);
}

KVPLAN_INLINE Floats4 load_four(const float* source) {
  Floats4 value;
  std::memcpy(&value, source, sizeof value);
  return value;
}

KVPLAN_INLINE Floats4 load_four(const Int8* source) {
  typedef int8_t Codes4 __attribute__((vector_size(4)));
  Codes4 codes;
  std::memcpy(&codes, source, sizeof codes);
  return __builtin_convertvector(codes, Floats4);
}

template <class T>
KVPLAN_INLINE Floats4 load_four(const T* source) {
  return Floats4{to_float(source[0]), to_float(source[1]), to_float(source[2]), to_float(source[3])};
}

// packed[column][t] = rows[t][column] as float32, four tokens at a time: `tokens` is a multiple of four.
// packed [head_size, kTileTokens]
template <class T>
void pack_transposed(const T* const* rows, int tokens, int head_size, float* packed) {
  for (int t = 0; t < tokens; t += 4) {
    int column = 0;
    for (; column + 4 <= head_size; column += 4) {
      const Floats4 a = load_four(rows[t] + column), b = load_four(rows[t + 1] + column);
      const Floats4 c = load_four(rows[t + 2] + column), d = load_four(rows[t + 3] + column);
      const Floats4 ab_low = KVPLAN_SHUFFLE4(a, b, 0, 4, 1, 5), ab_high = KVPLAN_SHUFFLE4(a, b, 2, 6, 3, 7);
      const Floats4 cd_low = KVPLAN_SHUFFLE4(c, d, 0, 4, 1, 5), cd_high = KVPLAN_SHUFFLE4(c, d, 2, 6, 3, 7);
      const Floats4 columns[4] = {
          KVPLAN_SHUFFLE4(ab_low, cd_low, 0, 1, 4, 5), KVPLAN_SHUFFLE4(ab_low, cd_low, 2, 3, 6, 7),
          KVPLAN_SHUFFLE4(ab_high, cd_high, 0, 1, 4, 5), KVPLAN_SHUFFLE4(ab_high, cd_high, 2, 3, 6, 7)};
      for (int j = 0; j < 4; ++j) std::memcpy(packed + (column + j) * kTileTokens + t, &columns[j], sizeof columns[j]);
    }
    for (; column < head_size; ++column)
      for (int i = 0; i < 4; ++i) packed[column * kTileTokens + t + i] = to_float(rows[t + i][column]);
  }
}

// packed[t] = rows[t] as float32 with zeros up to `padded`. packed [tokens, padded]
template <class T>
void pack_rows(const T* const* rows, int tokens, int head_size, int padded, float* packed) {
  for (int t = 0; t < tokens; ++t) {
    float* target = packed + static_cast<int64_t>(t) * padded;
    int column = 0;
    for (; column + kLanes <= head_size; column += kLanes) store(target + column, load(rows[t] + column));
    if (column < head_size) store(target + column, load_part(rows[t] + column, head_size - column));
  }
}

}  // namespace kvplan
