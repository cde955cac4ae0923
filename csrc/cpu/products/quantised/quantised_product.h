// Some rows of x and a quantised weight in panels, for products that choose their panels themselves.
#pragma once

#include "../packed/packed_product.h"
#include "quantised_codes.h"

namespace kvplan {

// W: what the codes' values are multiplied as: bfloat16 where that is exact and the processor has dot products of it.
template <class W>
struct QuantisedProduct {
  const kvplan_weight_format& format;
  const CodeLayout layout;
  const uint8_t* packed;
  const Input<W>* x;  // in the weight's order of inputs, whole groups
  int64_t x_stride, rows;
  const float* x_sums;  // [rows, layout.groups], null without minimums
};

// Whether every code stands for a number that bfloat16 has.
bool is_exact_in_bfloat16(const kvplan_weight_format& format);

KVPLAN_INLINE void put(float value, float* target) {
  *target = value;
}
KVPLAN_INLINE void put(BFloat16 value, BFloat16* target) {
  *target = value;
}
KVPLAN_INLINE void put(BFloat16 value, float* target) {
  *target = to_float(value);
}

// A row of x in the weight's order of inputs, filled up with zeros to whole groups.
template <class T, class X>
void copy_row_in_order(const T* source, const int32_t* order, int64_t inputs, int64_t filled, X* target) {
  for (int64_t k = 0; k < inputs; ++k) put(source[order == nullptr ? k : order[k]], target + k);
  for (int64_t k = inputs; k < filled; ++k) target[k] = X{};
}

// The sum of each group of a row's inputs: by lanes, as one addition after the other costs as much as a narrow product.
template <class X>
void sum_groups(const X* x, const CodeLayout& layout, float* sums) {
  for (int64_t g = 0; g < layout.groups; ++g) {
    const X* first = x + g * layout.group;
    Floats lanes{};
    int64_t k = 0;
    for (; k + kLanes <= layout.group; k += kLanes) lanes += load(first + k);
    float sum = sum_of(lanes);
    for (; k < layout.group; ++k) sum += to_float(first[k]);
    sums[g] = sum;
  }
}

// Sums of some panels over all inputs: [panels, kMostChunkRows, kPanelOutputs].
template <class W>
void multiply_quantised_panels(const QuantisedProduct<W>& product, int64_t panel, int64_t panels, float* sums,
                               ConfiguredTiles& tiles);

extern template void multiply_quantised_panels(const QuantisedProduct<float>&, int64_t, int64_t, float*, ConfiguredTiles&);
#if KVPLAN_BFLOAT16_CODES
extern template void multiply_quantised_panels(const QuantisedProduct<BFloat16>&, int64_t, int64_t, float*,
                                               ConfiguredTiles&);
#endif

// Panels [begin, end), as run_panels does it: finish(panel, rows, sums) for each, or for each pair of them.
template <class W, class Finish>
void run_quantised_panels(const QuantisedProduct<W>& product, int64_t begin, int64_t end, bool pairs, float* sums,
                          const Finish& finish) {
  ConfiguredTiles tiles;
  for (int64_t panel = begin; panel < end; panel += kMostUnitPanels) {
    const int64_t panels = end - panel < kMostUnitPanels ? end - panel : kMostUnitPanels;
    multiply_quantised_panels<W>(product, panel, panels, sums, tiles);
    for (int64_t c = 0; c < panels; c += pairs ? 2 : 1) finish(panel + c, product.rows, sums + c * kPanelSums);
  }
}

}  // namespace kvplan
