// Rounded rows of x and a quantised weight in panels, for products that choose their panels themselves.
#pragma once

#include "rounded_rows.h"

namespace kvplan {

struct RoundedProduct {
  const CodeLayout& layout;
  const uint8_t* packed;
  RoundedRows x;
  int64_t rows;
};

// Sums of some panels over all inputs: [panels, kMostChunkRows, kPanelOutputs].
void multiply_rounded_panels(const RoundedProduct& product, int64_t panel, int64_t panels, float* sums,
                             ConfiguredTiles& tiles);

// Panels [begin, end), as run_panels does it: finish(panel, rows, sums) for each, or for each pair of them.
template <class Finish>
void run_rounded_panels(const RoundedProduct& product, int64_t begin, int64_t end, bool pairs, float* sums,
                        const Finish& finish) {
  ConfiguredTiles tiles;
  for (int64_t panel = begin; panel < end; panel += kMostUnitPanels) {
    const int64_t panels = end - panel < kMostUnitPanels ? end - panel : kMostUnitPanels;
    multiply_rounded_panels(product, panel, panels, sums, tiles);
    for (int64_t c = 0; c < panels; c += pairs ? 2 : 1) finish(panel + c, product.rows, sums + c * kPanelSums);
  }
}

// Rows of a chunk, whose integers stay in the second-level cache.
inline int64_t rounded_chunk_rows(int64_t inputs) {
  const int64_t by_cache = kChunkBytes / inputs;
  return by_cache > kMostChunkRows ? kMostChunkRows : (by_cache < 24 ? 24 : by_cache);
}

// The product with a quantised weight whose codes count evenly, x rounded to 8 bits (args.format->rounds_inputs).
void multiply_rounded(const kvplan_packed_linear& args, int threads);

}  // namespace kvplan
