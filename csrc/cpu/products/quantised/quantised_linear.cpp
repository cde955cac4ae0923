// Products with quantised weights in panels (quantised_panels.h), which are never widened in memory.
//
// Rows of x are taken in chunks that stay in the second-level cache, as for dense weights (packed_linear.cpp), and the
// threads share the panels. x is copied where its inputs do not fill the last group, are in another order, or are of
// another type than the values.
#include <vector>

#include "quantised_amx.h"
#include "quantised_chunk.h"
#include "quantised_product.h"
#include "quantised_tile.h"
#include "../rounded/rounded_product.h"

namespace kvplan {
namespace {

constexpr int64_t kStepBytes = 20480;  // of widened values or of codes, a good half of the first-level cache
// Tiles of rows that each take the values from the codes: for as many, keeping them costs more (measured with AVX-512).
template <int kBits>
constexpr int64_t kMostCodeTiles = kBits == 4 ? 3 : 1;

template <class W, int kBits, bool kLinear>
using CodeTile = void (*)(const GroupStep<W>&, const CodeLayout&, const Decoder<kBits, kLinear>&);

template <class W, int kBits, bool kLinear>
CodeTile<W, kBits, kLinear> code_tile(int64_t rows) {
  static constexpr CodeTile<W, kBits, kLinear> kTiles[kPanelTileRows] = {
      run_codes<W, 1, kBits, kLinear, false>, run_codes<W, 2, kBits, kLinear, false>,
      run_codes<W, 3, kBits, kLinear, false>, run_codes<W, 4, kBits, kLinear, false>,
      run_codes<W, 5, kBits, kLinear, false>, run_codes<W, 6, kBits, kLinear, false>};
  return kTiles[rows - 1];
}

// The first of several tiles, which leaves the values for the others: more than six rows are tiles of three and more.
template <class W, int kBits, bool kLinear>
CodeTile<W, kBits, kLinear> keeping_tile(int64_t rows) {
  constexpr int64_t kLeastRows = 3;
  static constexpr CodeTile<W, kBits, kLinear> kTiles[] = {
      run_codes<W, 3, kBits, kLinear, true>, run_codes<W, 4, kBits, kLinear, true>,
      run_codes<W, 5, kBits, kLinear, true>, run_codes<W, 6, kBits, kLinear, true>};
  return kTiles[rows - kLeastRows];
}

template <class W>
using WideTile = void (*)(const GroupStep<W>&, const CodeLayout&);

template <class W>
WideTile<W> wide_tile(int64_t rows) {
  static constexpr WideTile<W> kTiles[kPanelTileRows] = {run_wide<W, 1>, run_wide<W, 2>, run_wide<W, 3>,
                                                         run_wide<W, 4>, run_wide<W, 5>, run_wide<W, 6>};
  return kTiles[rows - 1];
}

// What a step's groups are widened to: their values, and their scales.
template <class W>
struct WideMemory {
  W* values;
  float* scales;
};

template <class W>
WideMemory<W> wide_memory() {
  constexpr size_t kMostGroups = kStepBytes / (kLeastGroup * kPanelOutputs * sizeof(W)) + 1;
  static thread_local LineMemory<W> values(kMostGroup * kPanelOutputs + kStepBytes / sizeof(W));
  static thread_local LineMemory<float> scales(kMostGroups * kWideScales);
  return {values.data(), scales.data()};
}

// Sums of one panel over all inputs: [rows, kPanelOutputs].
template <class W, int kBits, bool kLinear>
void multiply_panel(const QuantisedProduct<W>& product, const Decoder<kBits, kLinear>& decoder, int64_t panel,
                    const WideMemory<W>& memory, float* sums) {
  const CodeLayout& layout = product.layout;
  std::memset(sums, 0, sizeof(float) * static_cast<size_t>(product.rows * kPanelOutputs));
  GroupStep<W> step{};
  step.x_stride = product.x_stride;
  step.x_sums_stride = layout.groups;
  step.panel = product.packed + panel * layout.panel_bytes();
  const int64_t tiles = divided_up(product.rows, kPanelTileRows);
  const bool widens = tiles > kMostCodeTiles<kBits>;
  const int64_t passes = widens ? tiles - 1 : tiles;  // over which the next step is prefetched
  const int64_t group_wide = layout.group * kPanelOutputs;
  const int64_t wanted = kStepBytes / (widens ? group_wide * int64_t{sizeof(W)} : layout.group_bytes());
  const int64_t step_groups = tiles == 1 ? layout.groups : wanted > 0 ? wanted : 1;
  for (int64_t g = 0; g < layout.groups; g += step_groups) {
    step.first_group = g;
    step.num_groups = layout.groups - g < step_groups ? layout.groups - g : step_groups;
    const int64_t step_bytes = step.num_groups * layout.group_bytes();
    const uint8_t* next_step = StoredGroup(step.panel, g, layout).first + step_bytes;
    step.wide = memory.values;
    step.scales = memory.scales;
    step.ahead_bytes = divided_up(step_bytes * kWidePairs<W>, passes * step.num_groups * layout.group);
    for (int64_t i = 0; i < tiles; ++i) {
      const int64_t begin = product.rows * i / tiles, end = product.rows * (i + 1) / tiles;
      step.x = product.x + begin * product.x_stride + g * layout.group;
      step.x_sums = product.x_sums == nullptr ? nullptr : product.x_sums + begin * layout.groups + g;
      step.sums = sums + begin * kPanelOutputs;
      step.ahead = reinterpret_cast<const char*>(next_step) + step_bytes * (i - tiles + passes) / passes;
      if (!widens) {
        code_tile<W, kBits, kLinear>(end - begin)(step, layout, decoder);
      } else if (i == 0) {
        keeping_tile<W, kBits, kLinear>(end - begin)(step, layout, decoder);
      } else {
        wide_tile<W>(end - begin)(step, layout);
      }
    }
  }
}

#if KVPLAN_AMX && KVPLAN_BFLOAT16_CODES
// The same in tiles, or in their order.
template <int kBits, bool kLinear>
void multiply_panel_in_tiles(const QuantisedProduct<BFloat16>& product, const Decoder<kBits, kLinear>& decoder,
                             int64_t panel, float* sums, ConfiguredTiles& configured) {
  const CodeLayout& layout = product.layout;
  std::memset(sums, 0, sizeof(float) * static_cast<size_t>(product.rows * kPanelOutputs));
  const WideMemory<BFloat16> memory = wide_memory<BFloat16>();
  GroupStep<BFloat16> step{};
  step.x_stride = product.x_stride;
  step.x_sums_stride = layout.groups;
  step.panel = product.packed + panel * layout.panel_bytes();
  step.wide = memory.values;
  step.scales = memory.scales;
  if (product.rows <= kMostRowsOfVectors && one_row_is_as_in_tiles()) {
    step.x = product.x;
    step.x_sums = product.x_sums;
    step.num_groups = layout.groups;
    step.sums = sums;
    return product.rows == 1 ? run_in_order_of_tiles<1>(step, layout, decoder)
                             : run_in_order_of_tiles<2>(step, layout, decoder);
  }
  const int64_t tiles = divided_up(product.rows, kTileHeight);
  const int64_t wanted = kStepBytes / (layout.group * kPanelOutputs * int64_t{sizeof(BFloat16)});
  const int64_t step_groups = wanted > 0 ? wanted : 1;
  for (int64_t g = 0; g < layout.groups; g += step_groups) {
    step.first_group = g;
    step.num_groups = layout.groups - g < step_groups ? layout.groups - g : step_groups;
    widen_groups(step, layout, decoder);
    const int64_t step_bytes = step.num_groups * layout.group_bytes();
    const uint8_t* next_step = StoredGroup(step.panel, g, layout).first + step_bytes;
    step.ahead_bytes = divided_up(layout.group_bytes(), 64 * tiles) * 64;
    for (int64_t i = 0; i < tiles; ++i) {
      // Backwards in every other step, so that tiles of the same shape follow each other.
      const int64_t index = g / step_groups % 2 == 0 ? i : tiles - 1 - i;
      const int64_t begin = product.rows * index / tiles, end = product.rows * (index + 1) / tiles;
      step.x = product.x + begin * product.x_stride + g * layout.group;
      step.x_sums = product.x_sums == nullptr ? nullptr : product.x_sums + begin * layout.groups + g;
      step.sums = sums + begin * kPanelOutputs;
      step.ahead = reinterpret_cast<const char*>(next_step) + step.ahead_bytes * step.num_groups * i;
      (layout.has_minimum ? run_in_tiles<true> : run_in_tiles<false>)(step, layout, end - begin, configured);
    }
  }
}
#endif

// Some panels' sums, kPanelSums apart.
template <class W, int kBits, bool kLinear>
void multiply_panels(const QuantisedProduct<W>& product, const Decoder<kBits, kLinear>& decoder, int64_t panel,
                     int64_t panels, float* sums, [[maybe_unused]] ConfiguredTiles& tiles) {
#if KVPLAN_AMX && KVPLAN_BFLOAT16_CODES
  if constexpr (sizeof(W) == sizeof(BFloat16)) {
    if (tiles_are_used()) {
      for (int64_t c = 0; c < panels; ++c)
        multiply_panel_in_tiles(product, decoder, panel + c, sums + c * kPanelSums, tiles);
      return;
    }
  }
#endif
  for (int64_t c = 0; c < panels; ++c)
    multiply_panel<W>(product, decoder, panel + c, wide_memory<W>(), sums + c * kPanelSums);
}

template <class T, class W, int kBits, bool kLinear>
void run_chunk(const kvplan_packed_linear& args, int64_t row, int64_t rows, int threads) {
  static thread_local std::vector<Input<W>> copies;
  static thread_local std::vector<float> group_sums;
  const kvplan_weight_format& format = *args.format;
  const CodeLayout layout(format, args.inputs);
  const int64_t filled = layout.groups * layout.group;
  const T* x = static_cast<const T*>(args.x) + row * args.x_stride;
  const bool direct = sizeof(T) == sizeof(Input<W>) && filled == args.inputs && format.input_order == nullptr &&
                      (rows == 1 || args.x_stride * int64_t{sizeof(T)} % 2048 != 0);
  const int64_t x_stride = direct ? args.x_stride : copied_stride<W>(filled);
  if (!direct) copies.resize(static_cast<size_t>(rows * x_stride));
  if (layout.has_minimum) group_sums.resize(static_cast<size_t>(rows * layout.groups));
  Input<W>* copy = copies.data();
  float* x_sums = layout.has_minimum ? group_sums.data() : nullptr;
  const Input<W>* read = direct ? reinterpret_cast<const Input<W>*>(x) : copy;
  const QuantisedProduct<W> product{format, layout, static_cast<const uint8_t*>(args.packed), read, x_stride, rows,
                                    x_sums};
  const Decoder<kBits, kLinear> decoder(format);
  const int64_t prepared = direct && x_sums == nullptr ? 0 : rows;
  const auto prepare = [&](int64_t i) {
    if (!direct) copy_row_in_order(x + i * args.x_stride, format.input_order, args.inputs, filled, copy + i * x_stride);
    if (x_sums != nullptr) sum_groups(read + i * x_stride, layout, x_sums + i * layout.groups);
  };
  const auto multiply = [&](int64_t panel, int64_t panels, float* sums, ConfiguredTiles& tiles) {
    multiply_panels(product, decoder, panel, panels, sums, tiles);
  };
  run_panels_of_chunk<T>(args, row, rows, prepared, prepare, multiply, threads);
}

template <class T, class W, int kBits, bool kLinear>
void multiply(const kvplan_packed_linear& args, int threads) {
  const int64_t chunks = divided_up(args.rows, chunk_rows<W>(args.inputs));
  for (int64_t i = 0; i < chunks; ++i) {
    const int64_t begin = args.rows * i / chunks, end = args.rows * (i + 1) / chunks;
    run_chunk<T, W, kBits, kLinear>(args, begin, end - begin, threads);
  }
}

template <class T, class W>
void multiply(const kvplan_packed_linear& args, int threads) {
  const kvplan_weight_format& format = *args.format;
  if (format.bits == 4) return multiply<T, W, 4, false>(args, threads);
  if (format.bits == 6) return multiply<T, W, 6, true>(args, threads);
  return format.code_book == nullptr ? multiply<T, W, 8, true>(args, threads)
                                     : multiply<T, W, 8, false>(args, threads);
}

}  // namespace

bool is_exact_in_bfloat16(const kvplan_weight_format& format) {
  if (format.code_book == nullptr) return format.zero >= 0 && format.zero <= 256;
  for (int code = 0; code < 1 << format.bits; ++code) {
    uint32_t bits;
    std::memcpy(&bits, format.code_book + code, sizeof bits);
    if ((bits & 0xffffu) != 0) return false;
  }
  return true;
}

template <class W>
void multiply_quantised_panels(const QuantisedProduct<W>& product, int64_t panel, int64_t panels, float* sums,
                               ConfiguredTiles& tiles) {
  const kvplan_weight_format& format = product.format;
  if (format.bits == 4) {
    multiply_panels(product, Decoder<4, false>(format), panel, panels, sums, tiles);
  } else if (format.bits == 6) {
    multiply_panels(product, Decoder<6, true>(format), panel, panels, sums, tiles);
  } else if (format.code_book == nullptr) {
    multiply_panels(product, Decoder<8, true>(format), panel, panels, sums, tiles);
  } else {
    multiply_panels(product, Decoder<8, false>(format), panel, panels, sums, tiles);
  }
}

template void multiply_quantised_panels(const QuantisedProduct<float>&, int64_t, int64_t, float*, ConfiguredTiles&);
#if KVPLAN_BFLOAT16_CODES
template void multiply_quantised_panels(const QuantisedProduct<BFloat16>&, int64_t, int64_t, float*, ConfiguredTiles&);
#endif

void multiply_quantised(const kvplan_packed_linear& args, int threads) {
  if (args.format->rounds_inputs != 0) return multiply_rounded(args, threads);
  if (args.storage != KVPLAN_BFLOAT16) return multiply<float, float>(args, threads);
#if KVPLAN_BFLOAT16_CODES
  if (is_exact_in_bfloat16(*args.format)) return multiply<BFloat16, BFloat16>(args, threads);
#endif
  multiply<BFloat16, float>(args, threads);
}

}  // namespace kvplan
