// What adapters add to a product that was computed elsewhere (kvplan_correct). Packed products add it themselves.
#include "lora_rows.h"

#include "../../parallel.h"

namespace kvplan {
namespace {

// out[0 : rows, output : output + count] += what the adapters add.
template <class T>
void correct_panel(const LoraRows<T>& lora, T* out, int64_t out_stride, int64_t rows, int64_t output, int64_t count) {
  static thread_local std::vector<float> sums(kPanelSums);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < count; ++j)
      sums[static_cast<size_t>(r * kPanelOutputs + j)] = to_float(out[r * out_stride + output + j]);
  lora.widen(output, count, sums.data());
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < count; j += kLanes) {
      const int part = static_cast<int>(count - j < kLanes ? count - j : kLanes);
      store_part(out + r * out_stride + output + j, load(sums.data() + r * kPanelOutputs + j), part);
    }
}

template <class T>
void correct(const kvplan_packed_linear& args, int threads) {
  for (int64_t first = 0; first < args.rows; first += kMostChunkRows) {
    const int64_t rows = std::min(args.rows - first, kMostChunkRows);
    const LoraRows<T> lora(args, first, first + rows);
    if (lora.is_empty()) continue;
    T* out = static_cast<T*>(args.out) + first * args.out_stride;
    for_each_item_in_turn(
        lora.items(), [&](int64_t item) { lora.narrow(item); }, divided_up(args.outputs, kPanelOutputs),
        [&](int64_t panel, const auto&) {
          const int64_t output = panel * kPanelOutputs;
          correct_panel(lora, out, args.out_stride, rows, output, std::min<int64_t>(args.outputs - output, kPanelOutputs));
        },
        threads);
  }
}

}  // namespace
}  // namespace kvplan

int kvplan_correct(const kvplan_packed_linear* args, int threads) {
  const int used = threads > 0 ? threads : 1;
  if (args->storage == KVPLAN_BFLOAT16)
    kvplan::correct<kvplan::BFloat16>(*args, used);
  else
    kvplan::correct<float>(*args, used);
  return KVPLAN_OK;
}
