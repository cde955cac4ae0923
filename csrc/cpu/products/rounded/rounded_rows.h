// Rows of x in integers of 8 bits, for products that multiply them with the codes of a weight as they are.
//
// Inputs that share a scale in the weight share one here too: their largest magnitude / 127. The integers of a unit of
// codes lie in the order in which quad_of() (rounded_tile.h) takes the codes out of their words.
#pragma once

#include <vector>

#include "../quantised/quantised_product.h"

#if KVPLAN_LANES == 8 && defined(__AVX2__)
#include <immintrin.h>
#elif KVPLAN_LANES == 4 && defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace kvplan {

// What a product reads of some rows.
struct RoundedRows {
  const int8_t* codes;  // [rows, stride]
  int64_t stride;
  // [rows, groups] each: the scale; where a sum of codes times integers begins, so that the code that stands for 0 counts
  // as 0; the sum of the rounded inputs, null without minimums
  const float* scales;
  const int32_t* starts;
  const float* sums;
};

// To the nearest integers, ties to even. The additions round too, but only where nothing fuses them with a product.
KVPLAN_INLINE Ints nearest_integers(Floats value) {
#if KVPLAN_AVX512
  return (Ints)_mm512_cvtps_epi32((__m512)value);
#elif KVPLAN_LANES == 8 && defined(__AVX2__)
  return (Ints)_mm256_cvtps_epi32((__m256)value);
#elif KVPLAN_LANES == 4 && defined(__aarch64__)
  return (Ints)vcvtnq_s32_f32((float32x4_t)value);
#else
  float lanes[kLanes];
  store(lanes, value);
  asm volatile("" : : "r"(lanes) : "memory");
  return bits_of(load(lanes) + 0x1.8p23f) - bits_of(splat(0x1.8p23f));
#endif
}

KVPLAN_INLINE Codes narrowed_to_bytes(Ints values) {
#if KVPLAN_AVX512
  return (Codes)_mm512_cvtepi32_epi8((__m512i)values);
#else
  return __builtin_convertvector(values, Codes);
#endif
}

#if defined(__clang__) || __GNUC__ >= 12
#define KVPLAN_SHUFFLE16(a, ...) __builtin_shufflevector(a, a, __VA_ARGS__)
#else
#define KVPLAN_SHUFFLE16(a, ...) __builtin_shuffle(a, (::kvplan::Codes16){__VA_ARGS__})
#endif
typedef int8_t Codes16 __attribute__((vector_size(16)));

// 16 inputs in the order of their codes.
KVPLAN_INLINE Codes16 in_order_of_codes(Codes16 codes, int bits) {
  if (bits == 8) return KVPLAN_SHUFFLE16(codes, 0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
  if (bits == 4) return KVPLAN_SHUFFLE16(codes, 0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
  return KVPLAN_SHUFFLE16(codes, 0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
}

KVPLAN_INLINE int32_t largest_of(Ints values) {
#if KVPLAN_AVX512
  return _mm512_reduce_max_epi32((__m512i)values);
#else
  int32_t largest = values[0];
  for (int i = 1; i < kLanes; ++i) largest = values[i] > largest ? values[i] : largest;
  return largest;
#endif
}

KVPLAN_INLINE int32_t sum_of(Ints values) {
#if KVPLAN_AVX512
  return _mm512_reduce_add_epi32((__m512i)values);
#else
  int32_t sum = values[0];
  for (int i = 1; i < kLanes; ++i) sum += values[i];
  return sum;
#endif
}

// Of a group whose largest magnitude has these bits. A group of almost nothing, for which 127 / largest would leave
// float32, is nothing; one that is not finite is no number.
struct RoundedScale {
  float scale, inverse;
  bool is_number;

  KVPLAN_INLINE explicit RoundedScale(int32_t bits) : is_number(bits < 0x7f800000) {
    constexpr float kLeast = 0x1p-100f;
    float largest;
    std::memcpy(&largest, &bits, sizeof largest);
    const bool is_there = is_number && largest >= kLeast;
    scale = is_there ? largest / 127.0f : (is_number ? 0.0f : __builtin_nanf(""));
    inverse = is_there ? 127.0f / largest : 0.0f;
  }
};

// Rounds rows into memory of the calling thread, which its next one takes over.
class RowRounding {
 public:
  RowRounding(const kvplan_weight_format& format, const CodeLayout& layout, int64_t inputs, int64_t rows)
      : format_(format), layout_(layout), inputs_(inputs), memory_(memory()) {
    constexpr int64_t kLine = 64;
    stride_ = divided_up(layout.groups * layout.group, kLine) / 2 * 2 * kLine + kLine;  // an odd number of lines
    grow(memory_.codes, rows * stride_);
    grow(memory_.scales, rows * layout.groups);
    grow(memory_.starts, rows * layout.groups);
    if (layout.has_minimum) grow(memory_.sums, rows * layout.groups);
  }

  RoundedRows rows() const {
    return {memory_.codes.data(), stride_, memory_.scales.data(), memory_.starts.data(),
            layout_.has_minimum ? memory_.sums.data() : nullptr};
  }

  // Row `index` from `source`, whose inputs are in `order`, or in the weight's where that is null. Several threads may.
  template <class T>
  void round(int64_t index, const T* source, const int32_t* order) const {
    T gathered[kMostGroup + kLanes] = {};
    for (int64_t g = 0; g < layout_.groups; ++g) {
      const int64_t first = g * layout_.group, left = inputs_ - first;
      if (order == nullptr && left >= layout_.group && layout_.group % kLanes == 0) {
        round_group(index, g, source + first);
        continue;
      }
      const int64_t count = left < layout_.group ? left : layout_.group;
      const T* from = order == nullptr ? source + first : source;
      copy_row_in_order(from, order == nullptr ? nullptr : order + first, count, layout_.group, gathered);
      round_group(index, g, gathered);
    }
  }

 private:
  struct Memory {
    std::vector<int8_t> codes;
    std::vector<float> scales, sums;
    std::vector<int32_t> starts;
  };

  static Memory& memory() {
    static thread_local Memory own;
    return own;
  }

  template <class Element>
  static void grow(std::vector<Element>& values, int64_t count) {
    if (values.size() < static_cast<size_t>(count)) values.resize(static_cast<size_t>(count));
  }

  // x: as many as the group has, and zeros up to whole vectors.
  template <class T>
  KVPLAN_INLINE void round_group(int64_t index, int64_t g, const T* x) const {
    Ints magnitudes{};  // ordered as integers too, with what is not finite above all numbers
    for (int64_t k = 0; k < layout_.group; k += kLanes) {
      const Ints bits = bits_of(load(x + k)) & 0x7fffffff;
      magnitudes = bits > magnitudes ? bits : magnitudes;
    }
    const RoundedScale scale(largest_of(magnitudes));
    alignas(64) int8_t codes[kMostGroup + 16];
    Ints sums{};
    for (int64_t k = 0; k < layout_.group; k += kLanes) {
      const Ints whole = scale.is_number ? nearest_integers(load(x + k) * splat(scale.inverse)) : Ints{};
      const Codes narrow = narrowed_to_bytes(whole);
      std::memcpy(codes + k, &narrow, sizeof narrow);
      sums += whole;
    }
    int8_t* target = memory_.codes.data() + index * stride_ + g * layout_.group;
    for (int64_t k = 0; k < layout_.group; k += 16) {
      Codes16 unit;
      std::memcpy(&unit, codes + k, sizeof unit);
      unit = in_order_of_codes(unit, layout_.bits);
      std::memcpy(target + k, &unit, static_cast<size_t>(layout_.group - k < 16 ? layout_.group - k : 16));
    }
    const int32_t sum = sum_of(sums);
    const size_t at = static_cast<size_t>(index * layout_.groups + g);
    memory_.scales[at] = scale.scale;
    memory_.starts[at] = -format_.zero * sum;
    if (layout_.has_minimum) memory_.sums[at] = scale.scale * static_cast<float>(sum);
  }

  const kvplan_weight_format& format_;
  const CodeLayout& layout_;
  int64_t inputs_, stride_;
  Memory& memory_;
};

}  // namespace kvplan
