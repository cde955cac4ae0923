// Vectors of 16 floats turned into each other.
#pragma once

#include "simd.h"

#if KVPLAN_LANES == 16

namespace kvplan {

#if KVPLAN_AVX512

// rows[i][j] becomes rows[j][i]: pairs, then fours, then quarters of registers change places.
KVPLAN_INLINE void transpose(Floats (&rows)[16]) {
  __m512 pairs[16], fours[16], quarters[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_ps((__m512)rows[i], (__m512)rows[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_ps((__m512)rows[i], (__m512)rows[i + 1]);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 4)
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const __m512d one = (__m512d)pairs[i + half], other = (__m512d)pairs[i + 2 + half];
      fours[i + 2 * half] = (__m512)_mm512_unpacklo_pd(one, other);
      fours[i + 2 * half + 1] = (__m512)_mm512_unpackhi_pd(one, other);
    }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
#pragma GCC unroll 2
    for (int half = 0; half < 16; half += 8) {
      quarters[half + i] = _mm512_shuffle_f32x4(fours[half + i], fours[half + 4 + i], 0x88);
      quarters[half + 4 + i] = _mm512_shuffle_f32x4(fours[half + i], fours[half + 4 + i], 0xdd);
    }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    rows[i] = (Floats)_mm512_shuffle_f32x4(quarters[i], quarters[8 + i], 0x88);
    rows[8 + i] = (Floats)_mm512_shuffle_f32x4(quarters[i], quarters[8 + i], 0xdd);
  }
}

// Halves of two registers in pairs, each a half of `one` and the same of `other`. Of each eight halves the first four pairs go
// to `low`, the others to `high`.
KVPLAN_INLINE void unpack_halves(Words one, Words other, uint32_t* low, uint32_t* high) {
  _mm512_storeu_si512(low, _mm512_unpacklo_epi16((__m512i)one, (__m512i)other));
  _mm512_storeu_si512(high, _mm512_unpackhi_epi16((__m512i)one, (__m512i)other));
}

#else

inline void transpose(Floats (&rows)[16]) {
  Floats turned[16];
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 16; ++j) turned[i][j] = rows[j][i];
  std::memcpy(rows, turned, sizeof turned);
}

inline void unpack_halves(Words one, Words other, uint32_t* low, uint32_t* high) {
  uint16_t ones[32], others[32];
  std::memcpy(ones, &one, sizeof ones);
  std::memcpy(others, &other, sizeof others);
  for (int i = 0; i < 32; ++i) {
    const uint32_t pair = ones[i] | uint32_t{others[i]} << 16;
    (i % 8 < 4 ? low : high)[i / 8 * 4 + i % 4] = pair;
  }
}

#endif

// Numbers in the order of unpack_halves, 16 of `low` and 16 of `high`, back in theirs.
inline void mend_halves(float* numbers) {
  float apart[32];
  std::memcpy(apart, numbers, sizeof apart);
  for (int i = 0; i < 8; ++i) std::memcpy(numbers + 4 * i, apart + i % 2 * 16 + i / 2 * 4, 4 * sizeof(float));
}

}  // namespace kvplan

#endif
