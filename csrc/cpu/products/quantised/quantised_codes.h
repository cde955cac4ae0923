// Codes of quantised weights, from their panels (quantised_panels.h) into the values that the inner loops multiply with.
#pragma once

#include "quantised_panels.h"

// Tables of half precision in registers.
#if KVPLAN_AVX512 && defined(__AVX512BW__)
#define KVPLAN_HALF_BOOK 1
#else
#define KVPLAN_HALF_BOOK 0
#endif

// Products with what codes stand for in bfloat16.
#if KVPLAN_BFLOAT16_DOT || defined(KVPLAN_TWINS)
#define KVPLAN_BFLOAT16_CODES 1
#else
#define KVPLAN_BFLOAT16_CODES 0
#endif

namespace kvplan {

KVPLAN_INLINE Words load_code_words(const uint8_t* source) {
  Words words;
  std::memcpy(&words, source, sizeof words);
  return words;
}

// The codes of some inputs of kLanes outputs. `codes`: of the unit, from the first output on.
template <int kBits>
struct CodeUnit {
  Words words[kUnitWords<kBits>];

  CodeUnit() = default;
  KVPLAN_INLINE explicit CodeUnit(const uint8_t* codes) {
#pragma GCC unroll 3
    for (int i = 0; i < kUnitWords<kBits>; ++i) words[i] = load_code_words(codes + i * kPanelOutputs * 4);
  }
};

// Bits moved up, or down where `by` is negative.
KVPLAN_INLINE Words moved_up(Words words, int by) {
  return by >= 0 ? words << static_cast<uint32_t>(by) : words >> static_cast<uint32_t>(-by);
}

// What codes stand for: kLinear: code - zero; otherwise an entry of the code book. Codes of 6 bits are linear.
template <int kBits, bool kLinear>
struct Decoder {
  static_assert(kBits != 6 || kLinear);
  const float* book;
  int32_t zero;
  float small_book[16];  // of 4 bits, which are always looked up
#if KVPLAN_AVX512
  __m512 small_book_vector;
#endif
#if KVPLAN_BFLOAT16_DOT
  __m512i half_book;  // the same in bfloat16, twice, so that a fifth bit of the index does not matter
#endif
#if KVPLAN_HALF_BOOK
  __m512i sixty_four[2];  // of 6 bits: all 64 values in bfloat16
  __m512i quarters[4];  // the first half of a book of 8 bits, in bfloat16; the second is the same with the other sign
#endif

  explicit Decoder(const kvplan_weight_format& format) : book(format.code_book), zero(format.zero) {
    if constexpr (kBits == 4) {
      for (int code = 0; code < 16; ++code)
        small_book[code] = book == nullptr ? static_cast<float>(code - zero) : book[code];
#if KVPLAN_AVX512
      small_book_vector = _mm512_loadu_ps(small_book);
#endif
#if KVPLAN_BFLOAT16_DOT
      uint16_t halves[32];
      for (int code = 0; code < 32; ++code) {
        uint32_t bits;
        std::memcpy(&bits, &small_book[code % 16], sizeof bits);
        halves[code] = static_cast<uint16_t>(bits >> 16);
      }
      half_book = _mm512_loadu_si512(halves);
#endif
    }
#if KVPLAN_HALF_BOOK
    if constexpr (kBits == 6) {
      uint16_t halves[64];
      for (int code = 0; code < 64; ++code) {
        const float value = static_cast<float>(code - zero);
        uint32_t bits;
        std::memcpy(&bits, &value, sizeof bits);
        halves[code] = static_cast<uint16_t>(bits >> 16);
      }
      for (int i = 0; i < 2; ++i) sixty_four[i] = _mm512_loadu_si512(halves + 32 * i);
    }
    if constexpr (kBits == 8 && !kLinear) {
      uint16_t halves[128];
      for (int code = 0; code < 128; ++code) {
        uint32_t bits;
        std::memcpy(&bits, book + code, sizeof bits);
        halves[code] = static_cast<uint16_t>(bits >> 16);
      }
      for (int i = 0; i < 4; ++i) quarters[i] = _mm512_loadu_si512(halves + 32 * i);
    }
#endif
  }

#if KVPLAN_HALF_BOOK
  // What the bytes at bits 8 j of each half of a word stand for, in bfloat16: six bits choose of each half of the table,
  // the seventh chooses the half, the eighth is the sign.
  KVPLAN_INLINE __m512i looked_up(Words words, int j) const {
    const __m512i codes = _mm512_srli_epi16((__m512i)words, static_cast<unsigned>(8 * j));
    const __m512i low = _mm512_permutex2var_epi16(quarters[0], codes, quarters[1]);
    const __m512i high = _mm512_permutex2var_epi16(quarters[2], codes, quarters[3]);
    const __mmask32 is_high = _mm512_test_epi16_mask(codes, _mm512_set1_epi16(0x40));
    const __m512i sign = _mm512_and_si512(_mm512_slli_epi16(codes, 8), _mm512_set1_epi16(-0x8000));
    return _mm512_or_si512(_mm512_mask_blend_epi16(is_high, low, high), sign);
  }
#endif

  // The values of input k of a unit.
  KVPLAN_INLINE Floats values(const CodeUnit<kBits>& unit, int k) const {
    if constexpr (kBits == 6) {
      const int half = k % 2 * 16;
      const Words low = unit.words[k / 8] >> static_cast<uint32_t>(half + k / 2 % 4 * 4) & 15u;
      const Words high = unit.words[2] >> static_cast<uint32_t>(half + k / 2 * 2) & 3u;
      return __builtin_convertvector(reinterpret_cast<Ints>(low | high << 4) - zero, Floats);
    } else {
      return values_at(unit.words[0], code_shift(kBits, k));
    }
  }

  // The values of each word's code at `shift`.
  KVPLAN_INLINE Floats values_at(Words words, int shift) const {
#if KVPLAN_AVX512
    if constexpr (kBits == 4)
      return (Floats)_mm512_permutexvar_ps((__m512i)(words >> static_cast<uint32_t>(shift)), small_book_vector);
#endif
    const Ints codes = reinterpret_cast<Ints>(words >> static_cast<uint32_t>(shift)) & ((1 << kBits) - 1);
    if constexpr (kLinear) {
      return __builtin_convertvector(codes - zero, Floats);
    } else {
      [[maybe_unused]] const float* values = kBits == 4 ? small_book : book;
#if KVPLAN_HALF_BOOK
      const Words pair = (Words)looked_up(words, shift / 8 % 2);
      return (Floats)(shift < 16 ? pair << 16 : pair & 0xffff0000u);
#elif KVPLAN_AVX512
      return (Floats)_mm512_i32gather_ps((__m512i)codes, values, 4);
#else
      Floats result;
      for (int i = 0; i < kLanes; ++i) result[i] = values[codes[i]];
      return result;
#endif
    }
  }

#if KVPLAN_BFLOAT16_CODES
  // The pair of inputs 2 j and 2 j + 1 of a unit, in bfloat16; exact for the code books that take this way.
  KVPLAN_INLINE Words pair(const CodeUnit<kBits>& unit, int j) const {
#if KVPLAN_BFLOAT16_DOT
    const Words words = unit.words[kBits == 6 ? j / 4 : 0];
    if constexpr (kBits == 6) {
      // Bits 4 and 5 of the index are those of `high`; those above do not matter.
      const Words low = words >> static_cast<uint32_t>(j % 4 * 4), high = moved_up(unit.words[2], 4 - 2 * j);
      constexpr int kSecondWhereFirst = 0xca;
      const __m512i index = _mm512_ternarylogic_epi32(_mm512_set1_epi32(0x00300030), (__m512i)high, (__m512i)low,
                                                      kSecondWhereFirst);
      return (Words)_mm512_permutex2var_epi16(sixty_four[0], index, sixty_four[1]);
    } else if constexpr (kBits == 4) {
      return (Words)_mm512_permutexvar_epi16(_mm512_srli_epi16((__m512i)words, static_cast<unsigned>(4 * j)), half_book);
    } else if constexpr (!kLinear) {
      return (Words)looked_up(words, j);
    } else {
      const __m512i even = (__m512i)values_at(words, 8 * j), odd = (__m512i)values_at(words, 16 + 8 * j);
      return (Words)_mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(even, 16), odd);
    }
#else
    const Words even = reinterpret_cast<Words>(values(unit, 2 * j)), odd = reinterpret_cast<Words>(values(unit, 2 * j + 1));
    return even >> 16 | (odd & 0xffff0000u);
#endif
  }
#endif
};

}  // namespace kvplan
