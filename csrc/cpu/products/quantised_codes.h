// Codes of quantised weights, from their panels into the values that the inner loops multiply with.
//
// A panel holds kPanelOutputs outputs (packed_tile.h), group of inputs by group of inputs:
//
//   group 0:  scale of each output | minimum of each output (where the format has them) | codes        group 1: ...
//
// Codes lie in 32-bit words, one for each output: 8 inputs of 4 bits, or 4 inputs of 8 bits. The first 16 bits of a word
// are the even inputs, the last 16 the odd ones. So one load brings the codes of several inputs, and a pair of inputs is
// where the processors' dot products of bfloat16 want it.
#pragma once

#include "../../include/kvplan_cpu.h"
#include "packed_tile.h"

// Tables of half precision in registers.
#if KVPLAN_AVX512 && defined(__AVX512BW__)
#define KVPLAN_HALF_BOOK 1
#else
#define KVPLAN_HALF_BOOK 0
#endif

namespace kvplan {

// How a format's codes lie in a panel.
struct CodeLayout {
  int bits;
  int64_t group;            // inputs
  int64_t groups;           // of a row
  int64_t scale_bytes;      // of one output's scale
  bool has_minimum;

  explicit CodeLayout(const kvplan_weight_format& format, int64_t inputs)
      : bits(format.bits),
        group(format.group),
        groups((inputs + format.group - 1) / format.group),
        scale_bytes(format.scale_storage == KVPLAN_SCALE_E8M0      ? 1
                    : format.scale_storage == KVPLAN_SCALE_FLOAT16 ? 2
                                                                   : 4),
        has_minimum(format.has_minimum != 0) {}

  int64_t scales_bytes() const { return scale_bytes * kPanelOutputs * (has_minimum ? 2 : 1); }
  int64_t group_bytes() const { return scales_bytes() + group * bits / 8 * kPanelOutputs; }
  int64_t panel_bytes() const { return groups * group_bytes(); }
  int64_t word_inputs() const { return 32 / bits; }
};

// Where input k of a group lies within its word: the number of bits below it.
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

// kLanes scales, or minimums, from the v-th vector on.
KVPLAN_INLINE Floats load_scales(const uint8_t* source, int v, int64_t scale_bytes) {
  const uint8_t* at = source + v * kLanes * scale_bytes;
  if (scale_bytes == 1) return widen_powers(at);
  return scale_bytes == 2 ? widen_float16(at) : load(reinterpret_cast<const float*>(at));
}

KVPLAN_INLINE Words load_code_words(const uint8_t* source) {
  Words words;
  std::memcpy(&words, source, sizeof words);
  return words;
}

// What codes stand for: kLinear: code - zero; otherwise an entry of the code book.
template <int kBits, bool kLinear>
struct Decoder {
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

  // The values of each word's code at `shift`.
  KVPLAN_INLINE Floats values(Words words, int shift) const {
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

#if KVPLAN_BFLOAT16_DOT
  // The pair of inputs 2 j and 2 j + 1 of each word, in bfloat16; exact for the code books that take this way.
  KVPLAN_INLINE __m512bh pair(Words words, int j) const {
    if constexpr (kBits == 4) {
      return (__m512bh)_mm512_permutexvar_epi16(_mm512_srli_epi16((__m512i)words, static_cast<unsigned>(4 * j)),
                                                half_book);
    } else if constexpr (!kLinear) {
      return (__m512bh)looked_up(words, j);
    } else {
      const __m512i even = (__m512i)values(words, 8 * j), odd = (__m512i)values(words, 16 + 8 * j);
      return (__m512bh)_mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(even, 16), odd);
    }
  }
#endif
};

}  // namespace kvplan
