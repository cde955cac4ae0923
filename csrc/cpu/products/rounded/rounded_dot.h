// Four products of bytes at a time: codes of a weight, unsigned, with integers of one row, signed.
//
// Where the processor adds such products to 32 bits (VNNI, AArch64's I8MM), that is what runs; elsewhere the same integers
// come from smaller steps.
#pragma once

#include "../quantised/quantised_codes.h"

#if KVPLAN_LANES == 8 && defined(__AVX2__)
#include <immintrin.h>
#elif KVPLAN_LANES == 4 && defined(__ARM_FEATURE_MATMUL_INT8)
#include <arm_neon.h>
#endif

namespace kvplan {

// Four integers of one row, as the inner loop wants them for every output.
#if KVPLAN_AVX512 && defined(__AVX512VNNI__)
struct Quad {
  __m512i all;
  KVPLAN_INLINE explicit Quad(const int8_t* x) {
    int32_t word;
    std::memcpy(&word, x, sizeof word);
    all = _mm512_set1_epi32(word);
  }
  KVPLAN_INLINE Ints dot(Ints sums, Words codes) const {
    return (Ints)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)codes, all);
  }
};
#elif KVPLAN_LANES == 8 && (defined(__AVXVNNI__) || (defined(__AVX512VNNI__) && defined(__AVX512VL__)))
struct Quad {
  __m256i all;
  KVPLAN_INLINE explicit Quad(const int8_t* x) {
    int32_t word;
    std::memcpy(&word, x, sizeof word);
    all = _mm256_set1_epi32(word);
  }
  KVPLAN_INLINE Ints dot(Ints sums, Words codes) const {
#if defined(__AVXVNNI__)
    return (Ints)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)codes, all);
#else
    return (Ints)_mm256_dpbusd_epi32((__m256i)sums, (__m256i)codes, all);
#endif
  }
};
#elif KVPLAN_LANES == 8 && defined(__AVX2__)
// Bytes widened to 16 bits: the sum of two products of bytes need not fit them, so it is made in 32.
struct Quad {
  __m256i even, odd;
  KVPLAN_INLINE explicit Quad(const int8_t* x) {
    int32_t word;
    std::memcpy(&word, x, sizeof word);
    const __m256i all = _mm256_set1_epi32(word);
    even = _mm256_srai_epi16(_mm256_slli_epi16(all, 8), 8);
    odd = _mm256_srai_epi16(all, 8);
  }
  KVPLAN_INLINE Ints dot(Ints sums, Words codes) const {
    const __m256i low = (__m256i)(codes & 0x00ff00ffu), high = _mm256_srli_epi16((__m256i)codes, 8);
    return sums + (Ints)_mm256_madd_epi16(low, even) + (Ints)_mm256_madd_epi16(high, odd);
  }
};
#elif KVPLAN_LANES == 4 && defined(__ARM_FEATURE_MATMUL_INT8)
struct Quad {
  int8x16_t all;
  KVPLAN_INLINE explicit Quad(const int8_t* x) {
    int32_t word;
    std::memcpy(&word, x, sizeof word);
    all = vreinterpretq_s8_s32(vdupq_n_s32(word));
  }
  KVPLAN_INLINE Ints dot(Ints sums, Words codes) const {
    return (Ints)vusdotq_s32((int32x4_t)sums, (uint8x16_t)codes, all);
  }
};
#else
struct Quad {
  int32_t x[4];
  KVPLAN_INLINE explicit Quad(const int8_t* source) {
    for (int i = 0; i < 4; ++i) x[i] = source[i];
  }
  KVPLAN_INLINE Ints dot(Ints sums, Words codes) const {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) sums += reinterpret_cast<Ints>(codes >> static_cast<uint32_t>(8 * i) & 0xffu) * x[i];
    return sums;
  }
};
#endif

// The q-th four codes of a unit as bytes; codes: of the unit, from the first of kLanes outputs on.
template <int kBits>
KVPLAN_INLINE Words quad_of(const uint8_t* codes, int q) {
  const Words words = load_code_words(codes);
  if constexpr (kBits == 8) {
    return words;
  } else if constexpr (kBits == 4) {
    return words >> static_cast<uint32_t>(4 * q) & 0x0f0f0f0fu;
  } else {
    // Halves of the first two words side by side have their upper bits in the same place of all four bytes.
    const Words others = load_code_words(codes + kPanelOutputs * 4), upper = load_code_words(codes + kPanelOutputs * 8);
    const Words halves = q < 2 ? (words & 0x00ff00ffu) | (others << 8 & 0xff00ff00u)
                               : (words >> 8 & 0x00ff00ffu) | (others & 0xff00ff00u);
    return (halves >> static_cast<uint32_t>(q % 2 * 4) & 0x0f0f0f0fu) | (moved_up(upper, 4 - 2 * q) & 0x30303030u);
  }
}

}  // namespace kvplan
