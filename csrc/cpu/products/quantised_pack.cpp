// Quantised weights into panels (quantised_codes.h), and rows out of them.
#include "packed_product.h"
#include "../parallel.h"
#include "quantised_codes.h"

namespace kvplan {
namespace {

// A weight as its checkpoint's reader gives it: rows of codes, scales and minimums.
struct Published {
  const uint8_t* codes;
  const uint8_t* scales;
  const uint8_t* minimums;
  int64_t inputs, outputs;
};

uint32_t published_code(const Published& weight, int bits, int64_t output, int64_t k) {
  const uint8_t* row = weight.codes + output * (weight.inputs * bits / 8);
  return bits == 8 ? row[k] : row[k / 2] >> k % 2 * 4 & 15;
}

// Lanes without an output get scales of zero.
void pack_scales(const uint8_t* source, const CodeLayout& layout, int64_t first, int64_t group, int64_t outputs,
                 uint8_t* target) {
  const size_t bytes = static_cast<size_t>(layout.scale_bytes);
  std::memset(target, 0, bytes * kPanelOutputs);
  for (int lane = 0; lane < kPanelOutputs && first + lane < outputs; ++lane)
    std::memcpy(target + static_cast<size_t>(lane) * bytes,
                source + static_cast<size_t>((first + lane) * layout.groups + group) * bytes, bytes);
}

void pack_group(const Published& weight, const CodeLayout& layout, int64_t first, int64_t group, uint8_t* target) {
  pack_scales(weight.scales, layout, first, group, weight.outputs, target);
  if (layout.has_minimum)
    pack_scales(weight.minimums, layout, first, group, weight.outputs, target + layout.scale_bytes * kPanelOutputs);
  uint8_t* codes = target + layout.scales_bytes();
  const int64_t word_inputs = layout.word_inputs();
  for (int64_t k = 0; k < layout.group; k += word_inputs)
    for (int lane = 0; lane < kPanelOutputs; ++lane) {
      uint32_t word = 0;
      for (int64_t i = 0; i < word_inputs; ++i) {
        const int64_t input = group * layout.group + k + i;
        if (first + lane < weight.outputs && input < weight.inputs)
          word |= published_code(weight, layout.bits, first + lane, input) << code_shift(layout.bits, i);
      }
      std::memcpy(codes + (k / word_inputs * kPanelOutputs + lane) * 4, &word, 4);
    }
}

float scale_of(const uint8_t* scales, int lane, const CodeLayout& layout) {
  const int v = lane / kLanes;
  float all[kLanes];
  store(all, load_scales(scales, v, layout.scale_bytes));
  return all[lane % kLanes];
}

template <class T>
void unpack_row(const kvplan_weight_format& format, const CodeLayout& layout, const uint8_t* panel, int lane,
                int64_t inputs, T* out) {
  const int64_t word_inputs = layout.word_inputs();
  for (int64_t k = 0; k < inputs; ++k) {
    const uint8_t* group = panel + k / layout.group * layout.group_bytes();
    const int64_t within = k % layout.group;
    uint32_t word;
    std::memcpy(&word, group + layout.scales_bytes() + (within / word_inputs * kPanelOutputs + lane) * 4, 4);
    const int code = static_cast<int>(word >> code_shift(layout.bits, within)) & ((1 << layout.bits) - 1);
    const float value = format.code_book == nullptr ? static_cast<float>(code - format.zero) : format.code_book[code];
    float result = value * scale_of(group, lane, layout);
    if (layout.has_minimum) result += scale_of(group + layout.scale_bytes * kPanelOutputs, lane, layout);
    Floats all = splat(result);
    store_part(out + (format.input_order == nullptr ? k : format.input_order[k]), all, 1);
  }
}

template <class T>
void unpack_rows(const kvplan_weight_format& format, const uint8_t* packed, const int64_t* indices, T* out,
                 int64_t out_stride, int64_t rows, int64_t inputs, int threads) {
  const CodeLayout layout(format, inputs);
  for_each_range(rows, row_grain(16 * inputs), threads, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      unpack_row(format, layout, packed + indices[row] / kPanelOutputs * layout.panel_bytes(),
                 static_cast<int>(indices[row] % kPanelOutputs), inputs, out + row * out_stride);
  });
}

}  // namespace
}  // namespace kvplan

int64_t kvplan_quantised_bytes(const kvplan_weight_format* format, int64_t inputs, int64_t outputs, int gated) {
  using namespace kvplan;
  return num_panels(outputs, gated != 0) * CodeLayout(*format, inputs).panel_bytes();
}

int kvplan_pack_quantised(const kvplan_weight_format* format, const uint8_t* codes, const void* scales,
                          const void* minimums, void* packed, int64_t inputs, int64_t outputs, int gated,
                          int threads) {
  using namespace kvplan;
  if (gated != 0 && outputs % 2 != 0) return KVPLAN_BAD_INDEX;
  const CodeLayout layout(*format, inputs);
  const Published weight{codes, static_cast<const uint8_t*>(scales), static_cast<const uint8_t*>(minimums), inputs,
                         outputs};
  for_each_range(num_panels(outputs, gated != 0), 1, threads, [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel)
      for (int64_t group = 0; group < layout.groups; ++group)
        pack_group(weight, layout, first_output(panel, outputs, gated != 0), group,
                   static_cast<uint8_t*>(packed) + panel * layout.panel_bytes() + group * layout.group_bytes());
  });
  return KVPLAN_OK;
}

int kvplan_unpack_quantised_rows(const kvplan_weight_format* format, const void* packed, const int64_t* indices,
                                 void* out, int64_t out_stride, int64_t rows, int64_t inputs, int64_t outputs,
                                 int storage, int threads) {
  using namespace kvplan;
  for (int64_t row = 0; row < rows; ++row)
    if (indices[row] < 0 || indices[row] >= outputs) return KVPLAN_BAD_INDEX;
  const uint8_t* panels = static_cast<const uint8_t*>(packed);
  if (storage == KVPLAN_BFLOAT16) {
    unpack_rows(*format, panels, indices, static_cast<BFloat16*>(out), out_stride, rows, inputs, threads);
  } else {
    unpack_rows(*format, panels, indices, static_cast<float*>(out), out_stride, rows, inputs, threads);
  }
  return KVPLAN_OK;
}
