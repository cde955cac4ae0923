// Vectors of KVPLAN_LANES floats, written once over the compiler's vector extensions.
//
// The lane count is a compile-time choice, not the machine's register width: 16 lanes compile for AVX2 too (as pairs of
// registers), which is how the AVX-512 shape of every kernel is tested on machines without it.
#pragma once

#include <cstdint>
#include <cstring>

#ifndef KVPLAN_LANES
#if defined(__AVX512F__)
#define KVPLAN_LANES 16
#elif defined(__AVX2__)
#define KVPLAN_LANES 8
#else
#define KVPLAN_LANES 4
#endif
#endif

// Where the vectors are AVX-512's own registers, conversions are written as its instructions: GCC 12 takes them apart.
#if defined(__AVX512F__) && KVPLAN_LANES == 16
#pragma GCC diagnostic push
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC 12 warns of its own header
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop
#define KVPLAN_AVX512 1
#else
#define KVPLAN_AVX512 0
#endif

// Dot products of pairs of bfloat16 in AVX-512's registers.
#if defined(__AVX512BF16__) && KVPLAN_AVX512
#define KVPLAN_BFLOAT16_DOT 1
#else
#define KVPLAN_BFLOAT16_DOT 0
#endif

// The same in registers of any kind, see pairs.h; KVPLAN_TWINS: in plain loops, for tests on processors without them.
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC) && KVPLAN_LANES == 4
#include <arm_neon.h>
#define KVPLAN_NEON_DOT 1
#else
#define KVPLAN_NEON_DOT 0
#endif
#if KVPLAN_BFLOAT16_DOT || KVPLAN_NEON_DOT || defined(KVPLAN_TWINS)
#define KVPLAN_PAIR_DOT 1
#else
#define KVPLAN_PAIR_DOT 0
#endif

#define KVPLAN_INLINE inline __attribute__((always_inline))

namespace kvplan {

constexpr int kLanes = KVPLAN_LANES;

struct BFloat16 {
  uint16_t bits;
};

// Sign, 4 bits of exponent (bias 7), 3 of mantissa; no infinity, largest 448 (Micikevicius et al., FP8 Formats for Deep
// Learning, 2022). Only the KV pool is stored in it.
struct Float8E4M3 {
  uint8_t bits;
};

// An integer that is multiplied with a scale kept apart from it. Only the KV pool is stored in it.
struct Int8 {
  int8_t code;
};

typedef float Floats __attribute__((vector_size(kLanes * 4)));
typedef int32_t Ints __attribute__((vector_size(kLanes * 4)));
typedef uint32_t Words __attribute__((vector_size(kLanes * 4)));
typedef uint16_t Halves __attribute__((vector_size(kLanes * 2)));
typedef uint8_t Bytes __attribute__((vector_size(kLanes)));
typedef int8_t Codes __attribute__((vector_size(kLanes)));
typedef float Floats4 __attribute__((vector_size(16)));

// a[i], b[j] -> one vector of four; indices 4..7 name b's lanes.
#if defined(__clang__) || __GNUC__ >= 12
#define KVPLAN_SHUFFLE4(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
typedef int32_t Ints4 __attribute__((vector_size(16)));
#define KVPLAN_SHUFFLE4(a, b, i, j, k, l) __builtin_shuffle(a, b, (::kvplan::Ints4){i, j, k, l})
#endif

// Written as a subtraction because x - 0 is x for every x, so that the compiler drops it; x + 0 is not (-0 becomes 0).
KVPLAN_INLINE Floats splat(float value) {
  return value - Floats{};
}

KVPLAN_INLINE Ints bits_of(Floats value) {
  return reinterpret_cast<Ints>(value);
}

KVPLAN_INLINE Floats from_bits(Ints bits) {
  return reinterpret_cast<Floats>(bits);
}

// mask lanes are 0 or -1, as comparisons make them.
KVPLAN_INLINE Floats select(Ints mask, Floats yes, Floats no) {
  return from_bits((mask & bits_of(yes)) | (~mask & bits_of(no)));
}

KVPLAN_INLINE Floats maximum(Floats a, Floats b) {
  return a > b ? a : b;
}

KVPLAN_INLINE Floats load(const float* source) {
  Floats value;
  std::memcpy(&value, source, sizeof value);
  return value;
}

KVPLAN_INLINE Words widened(Halves halves) {
#if KVPLAN_AVX512
  return reinterpret_cast<Words>(_mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(halves)));
#else
  return __builtin_convertvector(halves, Words);
#endif
}

KVPLAN_INLINE Halves narrowed(Words words) {
#if KVPLAN_AVX512
  return reinterpret_cast<Halves>(_mm512_cvtepi32_epi16(reinterpret_cast<__m512i>(words)));
#else
  return __builtin_convertvector(words, Halves);
#endif
}

KVPLAN_INLINE Floats load(const BFloat16* source) {
  Halves halves;
  std::memcpy(&halves, source, sizeof halves);
  return reinterpret_cast<Floats>(widened(halves) << 16);
}

// Exponents 1 to 15 move to their place in a float. Below 2^-6 the mantissa counts steps of 2^-9: converted as a number,
// because a float that small, scaled up, would be subnormal itself on the way, which some processors compute slowly.
KVPLAN_INLINE Floats load(const Float8E4M3* source) {
  Bytes bytes;
  std::memcpy(&bytes, source, sizeof bytes);
  const Words bits = __builtin_convertvector(bytes, Words);
  const Ints magnitude = reinterpret_cast<Ints>(bits & 0x7fu);
  const Floats normal = from_bits((magnitude << 20) + (120 << 23));
  const Floats small = __builtin_convertvector(magnitude, Floats) * 0x1p-9f;
  const Ints is_nan = magnitude == 0x7f;
  const Ints value = (bits_of(select(magnitude < 8, small, normal))) | (is_nan & 0x7fc00000);
  return from_bits(value | reinterpret_cast<Ints>((bits & 0x80u) << 24));
}

// The integers, without their scale.
KVPLAN_INLINE Floats load(const Int8* source) {
  Codes codes;
  std::memcpy(&codes, source, sizeof codes);
#if KVPLAN_AVX512
  const Ints wide = reinterpret_cast<Ints>(_mm512_cvtepi8_epi32(reinterpret_cast<__m128i>(codes)));
#else
  const Ints wide = __builtin_convertvector(codes, Ints);
#endif
  return __builtin_convertvector(wide, Floats);
}

KVPLAN_INLINE Words load_words(const BFloat16* source) {
  Words words;
  std::memcpy(&words, source, sizeof words);
  return words;
}

KVPLAN_INLINE void store(float* target, Floats value) {
  std::memcpy(target, &value, sizeof value);
}

// Round to nearest, ties to even; a NaN stays a NaN. The unit makes zeros of subnormal numbers.
KVPLAN_INLINE void store(BFloat16* target, Floats value) {
#if KVPLAN_BFLOAT16_DOT
  const __m256bh rounded = _mm512_cvtneps_pbh((__m512)value);
  std::memcpy(target, &rounded, sizeof rounded);
#else
  const Words bits = reinterpret_cast<Words>(value);
  const Words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const Words is_nan = reinterpret_cast<Words>(value != value);
  const Halves halves = narrowed((is_nan & 0x7fc0u) | (~is_nan & rounded));
  std::memcpy(target, &halves, sizeof halves);
#endif
}

// Whether there are stores that write whole cache lines to memory without reading them first.
constexpr bool kStoresPastCaches = KVPLAN_AVX512;

// store() for what nobody reads soon. `target` is aligned to what is stored; the rest of its line is stored next. Other
// threads see it after finish_past_caches().
KVPLAN_INLINE void store_past_caches(float* target, Floats value) {
#if KVPLAN_AVX512
  _mm512_stream_ps(target, (__m512)value);
#else
  store(target, value);
#endif
}

KVPLAN_INLINE void store_past_caches(BFloat16* target, Floats value) {
#if KVPLAN_AVX512
  BFloat16 rounded[kLanes];
  store(rounded, value);
  __m256i halves;
  std::memcpy(&halves, rounded, sizeof halves);
  _mm256_stream_si256(reinterpret_cast<__m256i*>(target), halves);
#else
  store(target, value);
#endif
}

KVPLAN_INLINE void finish_past_caches() {
#if KVPLAN_AVX512
  _mm_sfence();
#endif
}

// Round to nearest, ties to even; what is larger than 448, infinities too, becomes 448; a NaN stays a NaN.
KVPLAN_INLINE void store(Float8E4M3* target, Floats value) {
  const Words sign = reinterpret_cast<Words>(value) & 0x80000000u;
  const Floats absolute = from_bits(bits_of(value) & 0x7fffffff);
  const Floats limited = select(absolute > 448.0f, splat(448.0f), absolute);
  const Words bits = reinterpret_cast<Words>(limited);
  const Words normal = ((bits + 0x7ffffu + ((bits >> 20) & 1u)) >> 20) - (120u << 3);
  // added to 2^14, whose last bit is worth 2^-9, a small number is rounded to steps of that by the addition
  const Words small = reinterpret_cast<Words>(limited + 0x1p14f) - 0x46800000u;
  const Words is_small = reinterpret_cast<Words>(limited < 0x1p-6f);
  const Words is_nan = reinterpret_cast<Words>(value != value);
  const Words rounded = (is_small & small) | (~is_small & normal);
  const Words result = (is_nan & 0x7fu) | (~is_nan & rounded) | (sign >> 24);
  const Bytes bytes = __builtin_convertvector(result, Bytes);
  std::memcpy(target, &bytes, sizeof bytes);
}

// Round to nearest, ties to even. Values lie within -127 and 127.
KVPLAN_INLINE void store(Int8* target, Floats value) {
  // added to 1.5 * 2^23, whose last bit is worth 1, a number is rounded to integers by the addition
  const Ints rounded = bits_of(value + 0x1.8p23f) - bits_of(splat(0x1.8p23f));
  const Codes codes = __builtin_convertvector(rounded, Codes);
  std::memcpy(target, &codes, sizeof codes);
}

KVPLAN_INLINE float to_float(float value) {
  return value;
}

KVPLAN_INLINE float to_float(BFloat16 value) {
  const uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof wide);
  return wide;
}

KVPLAN_INLINE float to_float(Float8E4M3 value) {
  const int magnitude = value.bits & 0x7f;
  const uint32_t bits = static_cast<uint32_t>(magnitude == 0x7f ? 0x7fc00000 : (magnitude << 20) + (120 << 23));
  float wide;
  std::memcpy(&wide, &bits, sizeof wide);
  if (magnitude < 8) wide = static_cast<float>(magnitude) * 0x1p-9f;
  return value.bits & 0x80 ? -wide : wide;
}

KVPLAN_INLINE float to_float(Int8 value) {
  return static_cast<float>(value.code);
}

// The first `count` < kLanes elements; the other lanes are `fill`. Touches nothing beyond them.
template <class T>
KVPLAN_INLINE Floats load_part(const T* source, int count, float fill = 0.0f) {
  Floats value = splat(fill);
  for (int i = 0; i < count; ++i) value[i] = to_float(source[i]);
  return value;
}

template <class T>
KVPLAN_INLINE void store_part(T* target, Floats value, int count) {
  T all[kLanes];
  store(all, value);
  std::memcpy(target, all, sizeof(T) * static_cast<size_t>(count));
}

// All lanes folded onto four by addition.
KVPLAN_INLINE Floats4 fold_to_four(Floats value) {
  Floats4 parts[kLanes / 4];
  std::memcpy(parts, &value, sizeof value);
  Floats4 total = parts[0];
  for (int i = 1; i < kLanes / 4; ++i) total += parts[i];
  return total;
}

KVPLAN_INLINE float sum_of(Floats value) {
  const Floats4 four = fold_to_four(value);
  return (four[0] + four[1]) + (four[2] + four[3]);
}

KVPLAN_INLINE float maximum_of(Floats value) {
  Floats4 parts[kLanes / 4];
  std::memcpy(parts, &value, sizeof value);
  Floats4 four = parts[0];
  for (int i = 1; i < kLanes / 4; ++i) four = four > parts[i] ? four : parts[i];
  const Floats4 swapped = KVPLAN_SHUFFLE4(four, four, 2, 3, 0, 1);
  const Floats4 two = four > swapped ? four : swapped;
  return two[0] > two[1] ? two[0] : two[1];
}

#if KVPLAN_AVX512

// In each quarter of the result, that quarter's sums of the four vectors, side by side.
KVPLAN_INLINE Floats sums_by_quarters(Floats a, Floats b, Floats c, Floats d) {
  const __m512 va = (__m512)a, vb = (__m512)b, vc = (__m512)c, vd = (__m512)d;
  const __m512d ab = (__m512d)_mm512_add_ps(_mm512_unpacklo_ps(va, vb), _mm512_unpackhi_ps(va, vb));
  const __m512d cd = (__m512d)_mm512_add_ps(_mm512_unpacklo_ps(vc, vd), _mm512_unpackhi_ps(vc, vd));
  return (Floats)_mm512_unpacklo_pd(ab, cd) + (Floats)_mm512_unpackhi_pd(ab, cd);
}

#endif

// The sums of four vectors, side by side.
KVPLAN_INLINE Floats4 sums_of_four(Floats a, Floats b, Floats c, Floats d) {
#if KVPLAN_AVX512
  return fold_to_four(sums_by_quarters(a, b, c, d));
#else
  const Floats4 fa = fold_to_four(a), fb = fold_to_four(b), fc = fold_to_four(c), fd = fold_to_four(d);
  const Floats4 ab = KVPLAN_SHUFFLE4(fa, fb, 0, 1, 4, 5) + KVPLAN_SHUFFLE4(fa, fb, 2, 3, 6, 7);
  const Floats4 cd = KVPLAN_SHUFFLE4(fc, fd, 0, 1, 4, 5) + KVPLAN_SHUFFLE4(fc, fd, 2, 3, 6, 7);
  return KVPLAN_SHUFFLE4(ab, cd, 0, 2, 4, 6) + KVPLAN_SHUFFLE4(ab, cd, 1, 3, 5, 7);
#endif
}

// Each lane the sum of one of the vectors.
KVPLAN_INLINE Floats sums_of_each(const Floats (&vectors)[kLanes]) {
#if KVPLAN_AVX512
  Floats fours[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
    fours[i] = sums_by_quarters(vectors[4 * i], vectors[4 * i + 1], vectors[4 * i + 2], vectors[4 * i + 3]);
  const auto join = [](Floats a, Floats b) {
    return (Floats)_mm512_shuffle_f32x4((__m512)a, (__m512)b, 0x88) +
           (Floats)_mm512_shuffle_f32x4((__m512)a, (__m512)b, 0xdd);
  };
  return join(join(fours[0], fours[1]), join(fours[2], fours[3]));
#else
  float sums[kLanes];
#pragma GCC unroll 4
  for (int i = 0; i < kLanes; i += 4) {
    const Floats4 four = sums_of_four(vectors[i], vectors[i + 1], vectors[i + 2], vectors[i + 3]);
    std::memcpy(sums + i, &four, sizeof four);
  }
  return load(sums);
#endif
}

// Into the second-level cache.
KVPLAN_INLINE void prefetch_bytes(const void* address, int64_t bytes) {
  const char* line = static_cast<const char*>(address);
  for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(line + at, 0, 2);
}

// Into the first-level cache.
KVPLAN_INLINE void prefetch_near(const void* address, int64_t bytes) {
  const char* line = static_cast<const char*>(address);
  for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(line + at, 0, 3);
}

}  // namespace kvplan
