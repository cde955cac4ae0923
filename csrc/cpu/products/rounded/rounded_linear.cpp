// Products with quantised weights whose rows of x are rounded to 8 bits: the processor multiplies bytes with bytes.
//
// A panel is walked in steps of groups whose codes stay in the first-level cache while all rows of the chunk pass over
// them; codes are taken out of their words by every tile of rows, which costs less than leaving them behind widened.
#include "../quantised/quantised_chunk.h"
#include "rounded_amx.h"
#include "rounded_product.h"
#include "rounded_tile.h"

namespace kvplan {
namespace {

constexpr int64_t kStepBytes = 20480;  // of codes, or of bytes, a good half of the first-level cache
// Tiles of rows that each take codes out of their words; for more, the step's are left behind as bytes.
template <int kBits>
constexpr int64_t kMostCodeTiles = kBits == 8 ? INT64_MAX : kBits == 4 ? 3 : 1;

using Tile = void (*)(const RoundedStep&, const CodeLayout&);

template <int kBits, CodesFrom kFrom>
Tile tile_of(int64_t rows) {
  static constexpr Tile kTiles[kPanelTileRows] = {run_rounded<1, kBits, kFrom>, run_rounded<2, kBits, kFrom>,
                                                  run_rounded<3, kBits, kFrom>, run_rounded<4, kBits, kFrom>,
                                                  run_rounded<5, kBits, kFrom>, run_rounded<6, kBits, kFrom>};
  return kTiles[rows - 1];
}

// What several tiles read of a step.
struct StepMemory {
  uint8_t* bytes;
  float* scales;
};

StepMemory step_memory() {
  constexpr size_t kMostGroups = kStepBytes / (kLeastGroup / 2 * kPanelOutputs) + 1;
  static thread_local LineMemory<uint8_t> bytes(kStepBytes + kMostGroup * kPanelOutputs);
  static thread_local LineMemory<float> scales(kMostGroups * kWideScales);
  return {bytes.data(), scales.data()};
}

// Rows from `first` on, from group `group` on.
RoundedRows rows_from(const RoundedRows& x, const CodeLayout& layout, int64_t first, int64_t group) {
  const int64_t at = first * layout.groups + group;
  return {x.codes + first * x.stride + group * layout.group, x.stride, x.scales + at, x.starts + at,
          x.sums == nullptr ? nullptr : x.sums + at};
}

// The step for all rows.
template <int kBits, CodesFrom kFrom>
void run_tiles(const RoundedProduct& product, RoundedStep step, int64_t tiles, float* sums) {
  const int64_t step_bytes = step.num_groups * product.layout.group_bytes();
  const char* next_step = reinterpret_cast<const char*>(
      StoredGroup(step.panel, step.first_group + step.num_groups, product.layout).first);
  step.ahead_bytes = divided_up(product.layout.group_bytes(), tiles);
  for (int64_t i = 0; i < tiles; ++i) {
    const int64_t begin = product.rows * i / tiles, end = product.rows * (i + 1) / tiles;
    step.x = rows_from(product.x, product.layout, begin, step.first_group);
    step.sums = sums + begin * kPanelOutputs;
    step.ahead = next_step + step_bytes * i / tiles;
    tile_of<kBits, kFrom>(end - begin)(step, product.layout);
  }
}

// Sums of one panel over all inputs: [rows, kPanelOutputs].
template <int kBits>
void multiply_panel(const RoundedProduct& product, int64_t panel, float* sums) {
  const CodeLayout& layout = product.layout;
  std::memset(sums, 0, sizeof(float) * static_cast<size_t>(product.rows * kPanelOutputs));
  RoundedStep step{};
  step.row_groups = layout.groups;
  step.panel = product.packed + panel * layout.panel_bytes();
  const int64_t tiles = divided_up(product.rows, kPanelTileRows);
  if (tiles == 1) {
    step.num_groups = layout.groups;
    step.x = product.x;
    step.sums = sums;
    return tile_of<kBits, CodesFrom::kMemory>(product.rows)(step, layout);
  }
  const StepMemory memory = step_memory();
  step.bytes = memory.bytes;
  step.scales = memory.scales;
  const bool widens = tiles > kMostCodeTiles<kBits>;
  const int64_t wanted = kStepBytes / (widens ? layout.group * kPanelOutputs : layout.group_bytes());
  const int64_t step_groups = wanted > 0 ? wanted : 1;
  for (int64_t g = 0; g < layout.groups; g += step_groups) {
    step.first_group = g;
    step.num_groups = layout.groups - g < step_groups ? layout.groups - g : step_groups;
    for (int64_t i = 0; i < step.num_groups; ++i)
      widen_scales(StoredGroup(step.panel, g + i, layout), memory.scales + i * kWideScales);
    if (widens) {
      widen_codes<kBits>(step, layout, memory.bytes);
      run_tiles<8, CodesFrom::kBytes>(product, step, tiles, sums);
    } else {
      run_tiles<kBits, CodesFrom::kPanel>(product, step, tiles, sums);
    }
  }
}

#if KVPLAN_AMX_INT8
// The same in tiles.
template <int kBits>
void multiply_panel_in_tiles(const RoundedProduct& product, int64_t panel, float* sums, ConfiguredTiles& configured) {
  const CodeLayout& layout = product.layout;
  std::memset(sums, 0, sizeof(float) * static_cast<size_t>(product.rows * kPanelOutputs));
  const StepMemory memory = step_memory();
  RoundedStep step{};
  step.row_groups = layout.groups;
  step.panel = product.packed + panel * layout.panel_bytes();
  step.bytes = memory.bytes;
  step.scales = memory.scales;
  const int64_t tiles = divided_up(product.rows, kTileHeight), group_bytes = layout.group * kPanelOutputs;
  const int64_t step_groups = kStepBytes > group_bytes ? kStepBytes / group_bytes : 1;
  const auto codes = [&](int64_t g) {
    if constexpr (kBits != 8) return step.bytes + g * group_bytes;
    return StoredGroup(step.panel, step.first_group + g, layout).codes();
  };
  for (int64_t g = 0; g < layout.groups; g += step_groups) {
    step.first_group = g;
    step.num_groups = layout.groups - g < step_groups ? layout.groups - g : step_groups;
    for (int64_t i = 0; i < step.num_groups; ++i)
      widen_scales(StoredGroup(step.panel, g + i, layout), memory.scales + i * kWideScales);
    if constexpr (kBits != 8) {
      widen_codes<kBits>(step, layout, memory.bytes);
      settle(memory.bytes);
    }
    const uint8_t* next_step = StoredGroup(step.panel, g + step.num_groups, layout).first;
    step.ahead_bytes = divided_up(layout.group_bytes(), 64 * tiles) * 64;
    for (int64_t i = 0; i < tiles; ++i) {
      // Backwards in every other step, so that tiles of the same shape follow each other.
      const int64_t index = g / step_groups % 2 == 0 ? i : tiles - 1 - i;
      const int64_t begin = product.rows * index / tiles, end = product.rows * (index + 1) / tiles;
      step.x = rows_from(product.x, layout, begin, g);
      step.sums = sums + begin * kPanelOutputs;
      step.ahead = reinterpret_cast<const char*>(next_step) + step.ahead_bytes * step.num_groups * i;
      if (layout.has_minimum) {
        run_bytes_in_tiles<true>(step, layout, end - begin, codes, configured);
      } else {
        run_bytes_in_tiles<false>(step, layout, end - begin, codes, configured);
      }
    }
  }
}
#endif

template <int kBits>
void multiply_panels(const RoundedProduct& product, int64_t panel, int64_t panels, float* sums,
                     [[maybe_unused]] ConfiguredTiles& tiles) {
  for (int64_t c = 0; c < panels; ++c) {
#if KVPLAN_AMX_INT8
    if (product.rows > kPanelTileRows && byte_tiles_are_used()) {
      multiply_panel_in_tiles<kBits>(product, panel + c, sums + c * kPanelSums, tiles);
      continue;
    }
#endif
    multiply_panel<kBits>(product, panel + c, sums + c * kPanelSums);
  }
}

template <class T>
void run_chunk(const kvplan_packed_linear& args, int64_t row, int64_t rows, int threads) {
  const kvplan_weight_format& format = *args.format;
  const CodeLayout layout(format, args.inputs);
  const T* x = static_cast<const T*>(args.x) + row * args.x_stride;
  const RowRounding rounding(format, layout, args.inputs, rows);
  const RoundedProduct product{layout, static_cast<const uint8_t*>(args.packed), rounding.rows(), rows};
  const auto prepare = [&](int64_t i) { rounding.round(i, x + i * args.x_stride, format.input_order); };
  const auto multiply = [&](int64_t panel, int64_t panels, float* sums, ConfiguredTiles& tiles) {
    multiply_rounded_panels(product, panel, panels, sums, tiles);
  };
  run_panels_of_chunk<T>(args, row, rows, rows, prepare, multiply, threads);
}

template <class T>
void run_chunks(const kvplan_packed_linear& args, int threads) {
  const int64_t chunks = divided_up(args.rows, rounded_chunk_rows(args.inputs));
  for (int64_t i = 0; i < chunks; ++i) {
    const int64_t begin = args.rows * i / chunks, end = args.rows * (i + 1) / chunks;
    run_chunk<T>(args, begin, end - begin, threads);
  }
}

}  // namespace

void multiply_rounded_panels(const RoundedProduct& product, int64_t panel, int64_t panels, float* sums,
                             ConfiguredTiles& tiles) {
  if (product.layout.bits == 4) {
    multiply_panels<4>(product, panel, panels, sums, tiles);
  } else if (product.layout.bits == 6) {
    multiply_panels<6>(product, panel, panels, sums, tiles);
  } else {
    multiply_panels<8>(product, panel, panels, sums, tiles);
  }
}

void multiply_rounded(const kvplan_packed_linear& args, int threads) {
  if (args.storage == KVPLAN_BFLOAT16) {
    run_chunks<BFloat16>(args, threads);
  } else {
    run_chunks<float>(args, threads);
  }
}

}  // namespace kvplan
