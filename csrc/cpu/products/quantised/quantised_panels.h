// How quantised weights lie in panels, and their scales.
//
// A panel holds kPanelOutputs outputs (packed_tile.h), group of inputs by group of inputs:
//
//   group 0:  scale of each output | minimum of each output (where the format has them) | codes        group 1: ...
//
// Before the groups lie, where scales are int8, the float16 that they are multiplied with: for each block of inputs one of
// each output, then that of its minimums.
//
// Codes lie in 32-bit words, one for each output: 8 inputs of 4 bits, or 4 inputs of 8 bits. The first 16 bits of a word
// are the even inputs, the last 16 the odd ones. So one load brings the codes of several inputs, and a pair of inputs is
// where the processors' dot products of bfloat16 want it. 16 inputs of 6 bits are three words: the lower 4 bits of the
// first 8 inputs, those of the others, and the upper 2 bits of all.
#pragma once

#include "../../../include/kvplan_cpu.h"
#include "../packed/packed_tile.h"

namespace kvplan {

constexpr int64_t kLeastGroup = 8, kMostGroup = 256;  // inputs

// How a format's codes lie in a panel.
struct CodeLayout {
  int bits;
  int64_t group;            // inputs
  int64_t groups;           // of a row
  int scale_storage;
  int64_t scale_bytes;      // of one output's scale
  bool has_minimum;
  int block_shift;          // 2^block_shift groups share the float16 of their int8; -1: scales are no int8
  int64_t header_bytes;     // of a panel, before its groups

  explicit CodeLayout(const kvplan_weight_format& format, int64_t inputs)
      : bits(format.bits),
        group(format.group),
        groups((inputs + format.group - 1) / format.group),
        scale_storage(format.scale_storage),
        scale_bytes(format.scale_storage == KVPLAN_SCALE_FLOAT32   ? 4
                    : format.scale_storage == KVPLAN_SCALE_FLOAT16 ? 2
                                                                   : 1),
        has_minimum(format.has_minimum != 0),
        block_shift(scale_storage == KVPLAN_SCALE_SCALED_INT8 ? __builtin_ctz(format.block / format.group) : -1),
        header_bytes(blocks() * block_bytes()) {}

  int64_t scales_bytes() const { return scale_bytes * kPanelOutputs * (has_minimum ? 2 : 1); }
  int64_t group_bytes() const { return scales_bytes() + group * bits / 8 * kPanelOutputs; }
  int64_t block_bytes() const { return 2 * kPanelOutputs * (has_minimum ? 2 : 1); }
  int64_t blocks() const { return block_shift < 0 ? 0 : ((groups - 1) >> block_shift) + 1; }
  int64_t panel_bytes() const { return header_bytes + groups * group_bytes(); }
};

// Codes that are loaded together: inputs, and words of each output.
template <int kBits>
constexpr int kUnitInputs = kBits == 6 ? 16 : 32 / kBits;
template <int kBits>
constexpr int kUnitWords = kBits == 6 ? 3 : 1;

// Where input k of a group of 4 or 8 bits lies within its word: the number of bits below it.
constexpr int code_shift(int bits, int64_t k) {
  return static_cast<int>(k % 2 * 16 + k / 2 % (16 / bits) * bits);
}

// IEEE half precision, for what the processor has no instruction for: shifted into a float's place, and scaled up by the
// difference of the exponents' biases. Right for subnormals; scales are finite.
KVPLAN_INLINE Floats widen_float16(const uint8_t* source) {
  Halves halves;
  std::memcpy(&halves, source, sizeof halves);
#if KVPLAN_AVX512
  return (Floats)_mm512_cvtph_ps((__m256i)halves);
#else
  const Words bits = widened(halves);
  const Floats magnitude = reinterpret_cast<Floats>((bits & 0x7fffu) << 13) * 0x1p112f;
  return from_bits(bits_of(magnitude) | reinterpret_cast<Ints>((bits & 0x8000u) << 16));
#endif
}

// Powers of two, E8M0: the exponent of a float, whose least one is subnormal.
KVPLAN_INLINE Floats widen_powers(const uint8_t* source) {
  Bytes bytes;
  std::memcpy(&bytes, source, sizeof bytes);
  const Words exponents = __builtin_convertvector(bytes, Words);
  const Words is_least = reinterpret_cast<Words>(exponents == 0u);
  return reinterpret_cast<Floats>(exponents << 23 | (is_least & 0x400000u));
}

// The scales, or the minimums, of one group of a panel. block: the float16 of its block; null where there are none.
struct StoredScales {
  const uint8_t* first;
  const uint8_t* block;
  int storage;

  // The v-th vector of them. An int8 times a float16 is exact.
  KVPLAN_INLINE Floats operator()(int v) const {
    if (storage == KVPLAN_SCALE_SCALED_INT8)
      return load(reinterpret_cast<const Int8*>(first) + v * kLanes) * widen_float16(block + v * kLanes * 2);
    if (storage == KVPLAN_SCALE_FLOAT16) return widen_float16(first + v * kLanes * 2);
    if (storage == KVPLAN_SCALE_E8M0) return widen_powers(first + v * kLanes);
    return load(reinterpret_cast<const float*>(first) + v * kLanes);
  }
};

// One group of a panel: where its scales and codes lie.
struct StoredGroup {
  const uint8_t* first;
  const uint8_t* block;
  const CodeLayout& layout;

  StoredGroup(const uint8_t* panel, int64_t group, const CodeLayout& layout)
      : first(panel + layout.header_bytes + group * layout.group_bytes()),
        block(layout.block_shift < 0 ? nullptr : panel + (group >> layout.block_shift) * layout.block_bytes()),
        layout(layout) {}

  StoredScales scales() const { return {first, block, layout.scale_storage}; }
  StoredScales minimums() const {
    return {first + layout.scale_bytes * kPanelOutputs, block == nullptr ? nullptr : block + 2 * kPanelOutputs,
            layout.scale_storage};
  }
  const uint8_t* codes() const { return first + layout.scales_bytes(); }
};

}  // namespace kvplan
