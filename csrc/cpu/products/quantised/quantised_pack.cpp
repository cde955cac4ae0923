// Quantised weights into panels (quantised_panels.h), and rows out of them.
#include "../packed/packed_product.h"
#include "../../parallel.h"
#include "quantised_panels.h"

namespace kvplan {
namespace {

// A weight as its checkpoint's reader gives it: rows of codes, scales and minimums.
struct Published {
  const uint8_t* codes;
  const uint8_t* scales;
  const uint8_t* minimums;
  const uint8_t* block_scales;
  int64_t inputs, outputs;
};

uint32_t published_code(const Published& weight, int bits, int64_t output, int64_t k) {
  const uint8_t* row = weight.codes + output * (weight.inputs * bits / 8);
  if (bits == 8) return row[k];
  const uint32_t low = row[k / 2] >> k % 2 * 4 & 15;
  return bits == 4 ? low : low | (row[weight.inputs / 2 + k / 4] >> k % 4 * 2 & 3) << 4;
}

// Where a code of an output lies in its unit: the word and the bits below it, with how many bits of it.
struct CodePlace {
  int word, shift, from, bits;
};

// The parts of input k's code, k within its unit; returns how many there are.
int places_of_code(int bits, int64_t k, CodePlace places[2]) {
  if (bits != 6) {
    places[0] = {0, code_shift(bits, k), 0, bits};
    return 1;
  }
  const int half = static_cast<int>(k % 2 * 16);
  places[0] = {static_cast<int>(k / 8), code_shift(4, k), 0, 4};
  places[1] = {2, half + static_cast<int>(k / 2 * 2), 4, 2};
  return 2;
}

int unit_inputs(int bits) { return bits == 6 ? kUnitInputs<6> : 32 / bits; }
int unit_words(int bits) { return bits == 6 ? kUnitWords<6> : 1; }

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
  const int inputs = unit_inputs(layout.bits), num_words = unit_words(layout.bits);
  for (int64_t k = 0; k < layout.group; k += inputs)
    for (int lane = 0; lane < kPanelOutputs; ++lane) {
      uint32_t words[3] = {};
      for (int i = 0; i < inputs; ++i) {
        const int64_t input = group * layout.group + k + i;
        if (first + lane >= weight.outputs || input >= weight.inputs) continue;
        const uint32_t code = published_code(weight, layout.bits, first + lane, input);
        CodePlace places[2];
        for (int part = places_of_code(layout.bits, i, places) - 1; part >= 0; --part) {
          const CodePlace& place = places[part];
          words[place.word] |= (code >> place.from & ((1u << place.bits) - 1)) << place.shift;
        }
      }
      for (int word = 0; word < num_words; ++word)
        std::memcpy(codes + ((k / inputs * num_words + word) * kPanelOutputs + lane) * 4, &words[word], 4);
    }
}

// The float16 of one block's scales, behind them those of its minimums. Lanes without an output get zeros.
void pack_block_scales(const Published& weight, const CodeLayout& layout, int64_t first, int64_t block,
                       uint8_t* target) {
  const int kinds = layout.has_minimum ? 2 : 1;
  std::memset(target, 0, static_cast<size_t>(layout.block_bytes()));
  for (int lane = 0; lane < kPanelOutputs && first + lane < weight.outputs; ++lane)
    for (int kind = 0; kind < kinds; ++kind)
      std::memcpy(target + (kind * kPanelOutputs + lane) * 2,
                  weight.block_scales + (((first + lane) * layout.blocks() + block) * kinds + kind) * 2, 2);
}

int code_at(const uint8_t* codes, int bits, int64_t k, int lane) {
  const int inputs = unit_inputs(bits);
  uint32_t code = 0;
  CodePlace places[2];
  for (int part = places_of_code(bits, k % inputs, places) - 1; part >= 0; --part) {
    const CodePlace& place = places[part];
    uint32_t word;
    std::memcpy(&word, codes + ((k / inputs * unit_words(bits) + place.word) * kPanelOutputs + lane) * 4, 4);
    code |= (word >> place.shift & ((1u << place.bits) - 1)) << place.from;
  }
  return static_cast<int>(code);
}

float scale_of(const StoredScales& scales, int lane) {
  float all[kLanes];
  store(all, scales(lane / kLanes));
  return all[lane % kLanes];
}

template <class T>
void unpack_row(const kvplan_weight_format& format, const CodeLayout& layout, const uint8_t* panel, int lane,
                int64_t inputs, T* out) {
  for (int64_t g = 0; g < layout.groups; ++g) {
    const StoredGroup group(panel, g, layout);
    const float scale = scale_of(group.scales(), lane);
    const float minimum = layout.has_minimum ? scale_of(group.minimums(), lane) : 0.0f;
    const int64_t first = g * layout.group, end = first + layout.group < inputs ? first + layout.group : inputs;
    for (int64_t k = first; k < end; ++k) {
      const int code = code_at(group.codes(), layout.bits, k - first, lane);
      const float value = format.code_book == nullptr ? static_cast<float>(code - format.zero) : format.code_book[code];
      const Floats all = splat(value * scale + minimum);
      store_part(out + (format.input_order == nullptr ? k : format.input_order[k]), all, 1);
    }
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
                          const void* minimums, const void* block_scales, void* packed, int64_t inputs,
                          int64_t outputs, int gated, int threads) {
  using namespace kvplan;
  if (gated != 0 && outputs % 2 != 0) return KVPLAN_BAD_INDEX;
  const CodeLayout layout(*format, inputs);
  const Published weight{codes, static_cast<const uint8_t*>(scales), static_cast<const uint8_t*>(minimums),
                         static_cast<const uint8_t*>(block_scales), inputs, outputs};
  for_each_range(num_panels(outputs, gated != 0), 1, threads, [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t first = first_output(panel, outputs, gated != 0);
      uint8_t* target = static_cast<uint8_t*>(packed) + panel * layout.panel_bytes();
      for (int64_t block = 0; block < layout.blocks(); ++block)
        pack_block_scales(weight, layout, first, block, target + block * layout.block_bytes());
      target += layout.header_bytes;
      for (int64_t group = 0; group < layout.groups; ++group)
        pack_group(weight, layout, first, group, target + group * layout.group_bytes());
    }
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
