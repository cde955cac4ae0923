// The scales of a cache in integers: one for each token and KV head, for its key and for its value.
//
// They are taken out of the inner loops: a score is (query . integers) * scale of the key, and a token's weight is
// multiplied with the scale of its value before the product with the values' integers.
#pragma once

#include "../tile.h"

namespace kvplan {

template <class T>
constexpr bool kHasScales = false;
template <>
inline constexpr bool kHasScales<Int8> = true;

constexpr int64_t kScaleBytes = sizeof(float);

// Where the scales of a tile's tokens lie, of the first KV head; nothing for a cache without scales.
template <class T>
struct TileScales {};

template <>
struct TileScales<Int8> {
  const float* key_scales[kTileTokens];
  const float* value_scales[kTileTokens];

  // Of the tile's tokens [begin, end), which lie in one block: one behind the other from here on.
  void point_at(const float* keys, const float* values, int begin, int end) {
    for (int t = begin; t < end; ++t) {
      key_scales[t] = keys + (t - begin);
      value_scales[t] = values + (t - begin);
    }
  }
};

// factors [rows, kTileTokens] *= scale of each token, which lies `offset` behind scales[t]. Columns from `tokens` on
// are nobody's.
inline void multiply_scales(const float* const* scales, int64_t offset, int rows, int tokens, float* factors) {
  alignas(64) float gathered[kTileTokens] = {};
  for (int t = 0; t < tokens; ++t) gathered[t] = scales[t][offset];
  for (int t = 0; t < tokens; t += kLanes) {
    const Floats scale = load(gathered + t);
    for (int r = 0; r < rows; ++r) {
      float* target = factors + r * kTileTokens + t;
      store(target, load(target) * scale);
    }
  }
}

}  // namespace kvplan
