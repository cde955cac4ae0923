// The panels of a quantised weight over one chunk of rows: how threads share them, and what follows the product.
#pragma once

#include "../../parallel.h"
#include "../lora/lora_rows.h"

namespace kvplan {

// prepare(i) for every i below `prepared`, then multiply(panel, panels, sums, tiles) for every panel, or pair of gate and up,
// whose sums, kPanelSums apart, become rows [row, row + rows) of args.out.
template <class T, class Prepare, class Multiply>
void run_panels_of_chunk(const kvplan_packed_linear& args, int64_t row, int64_t rows, int64_t prepared,
                         const Prepare& prepare, const Multiply& multiply, int threads) {
  const bool pairs = is_gated(args.activation);
  const PanelResult<T, T> result{static_cast<const T*>(args.bias),
                                 static_cast<T*>(args.out) + row * args.out_stride,
                                 args.out_stride,
                                 pairs ? args.outputs / 2 : args.outputs,
                                 args.activation,
                                 0.0f};
  const int64_t unit = pairs ? 2 : 1;
  const PanelItems items(num_panels(args.outputs, pairs), unit, threads);
  const LoraRows<T> lora(args, row, row + rows);
  const auto first = [&](int64_t i) {
    if (i < prepared)
      prepare(i);
    else
      lora.narrow(i - prepared);
  };
  const auto second = [&](int64_t item, const auto&) {
    float* sums = unit_sums();
    ConfiguredTiles tiles;
    for (int64_t panel = items.begin(item); panel < items.end(item); panel += unit) {
      multiply(panel, unit, sums, tiles);
      lora.widen_panels(panel, sums);
      result(panel, rows, sums);
    }
  };
  for_each_item_in_turn(prepared + lora.items(), first, items.count(), second, threads);
}

}  // namespace kvplan
