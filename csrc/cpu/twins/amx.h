// AMX's tiles in plain loops, by their definition in Intel's manual: only tests compile it (KVPLAN_TWINS).
//
// What a processor would fault at ends the program: a tile without a shape, shapes that do not fit each other. Tiles hold
// NaN until they are loaded, rows and columns beyond their shape are zeros that a store does not write.
#pragma once

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "pair_dot.h"

namespace kvplan {

class AmxTwin {
 public:
  void configure(const void* shapes) {
    const uint8_t* bytes = static_cast<const uint8_t*>(shapes);
    demand(bytes[0] == 1 && bytes[1] == 0, "a palette of 1 that starts at row 0");
    for (int i = 2; i < 16; ++i) demand(bytes[i] == 0, "reserved bytes of zero");
    for (int tile = 0; tile < kTiles; ++tile) {
      std::memcpy(&row_bytes_[tile], bytes + 16 + 2 * tile, 2);
      rows_[tile] = bytes[48 + tile];
      demand(rows_[tile] <= 16 && row_bytes_[tile] <= 64 && (rows_[tile] == 0) == (row_bytes_[tile] == 0), "a shape");
    }
    is_configured_ = true;
    for (auto& tile : floats_)
      for (auto& row : tile)
        for (float& value : row) value = NAN;
  }

  void release() { is_configured_ = false; }

  void zero(int tile) {
    check(tile);
    std::memset(floats_[tile], 0, sizeof floats_[tile]);
  }

  void load(int tile, const void* base, int64_t stride) {
    zero(tile);
    for (int row = 0; row < rows_[tile]; ++row)
      std::memcpy(floats_[tile][row], static_cast<const char*>(base) + row * stride, row_bytes_[tile]);
  }

  void store(int tile, void* base, int64_t stride) {
    check(tile);
    for (int row = 0; row < rows_[tile]; ++row)
      std::memcpy(static_cast<char*>(base) + row * stride, floats_[tile][row], row_bytes_[tile]);
  }

  // sums += a * b: first and second numbers of pairs are added up apart, then together, then to the sum.
  void multiply(int sums, int a, int b) {
    check_product(sums, a, b);
    for (int row = 0; row < rows_[sums]; ++row)
      for (int column = 0; column < row_bytes_[sums] / 4; ++column) {
        float first = 0, second = 0;
        for (int k = 0; k < rows_[b]; ++k) {
          BFloat16 left[2], right[2];
          std::memcpy(left, &floats_[a][row][k], sizeof left);
          std::memcpy(right, &floats_[b][k][column], sizeof right);
          first = unit_fma(first, left[0], right[0]);
          second = unit_fma(second, left[1], right[1]);
        }
        float& sum = floats_[sums][row][column];
        sum = without_subnormals(without_subnormals(sum) + without_subnormals(first + second));
      }
  }

  // sums += a * b in 32 bits: signed bytes of a, unsigned ones of b, four at a time.
  void multiply_bytes(int sums, int a, int b) {
    check_product(sums, a, b);
    for (int row = 0; row < rows_[sums]; ++row)
      for (int column = 0; column < row_bytes_[sums] / 4; ++column) {
        int32_t sum;
        std::memcpy(&sum, &floats_[sums][row][column], sizeof sum);
        for (int k = 0; k < rows_[b]; ++k) {
          int8_t left[4];
          uint8_t right[4];
          std::memcpy(left, &floats_[a][row][k], sizeof left);
          std::memcpy(right, &floats_[b][k][column], sizeof right);
          for (int i = 0; i < 4; ++i) sum += left[i] * right[i];
        }
        std::memcpy(&floats_[sums][row][column], &sum, sizeof sum);
      }
  }

 private:
  static constexpr int kTiles = 8;

  static void demand(bool is_so, const char* what) {
    if (is_so) return;
    std::fprintf(stderr, "AMX would fault: not %s\n", what);
    std::abort();
  }

  void check(int tile) const { demand(is_configured_ && rows_[tile] > 0, "a tile that has a shape"); }

  void check_product(int sums, int a, int b) const {
    check(sums);
    check(a);
    check(b);
    demand(rows_[a] == rows_[sums] && row_bytes_[b] == row_bytes_[sums] && row_bytes_[a] == 4 * rows_[b],
           "shapes that fit each other");
  }

  bool is_configured_ = false;
  uint16_t row_bytes_[kTiles] = {};
  uint8_t rows_[kTiles] = {};
  float floats_[kTiles][16][16] = {};  // as bits: pairs of bfloat16, bytes and their sums too
};

inline AmxTwin& amx_twin() {
  static thread_local AmxTwin twin;
  return twin;
}

}  // namespace kvplan
