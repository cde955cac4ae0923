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

#define KVPLAN_INLINE inline __attribute__((always_inline))

namespace kvplan {

constexpr int kLanes = KVPLAN_LANES;

struct BFloat16 {
  uint16_t bits;
};

typedef float Floats __attribute__((vector_size(kLanes * 4)));
typedef int32_t Ints __attribute__((vector_size(kLanes * 4)));
typedef uint32_t Words __attribute__((vector_size(kLanes * 4)));
typedef uint16_t Halves __attribute__((vector_size(kLanes * 2)));
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

KVPLAN_INLINE Floats load(const BFloat16* source) {
  Halves halves;
  std::memcpy(&halves, source, sizeof halves);
  return reinterpret_cast<Floats>(__builtin_convertvector(halves, Words) << 16);
}

KVPLAN_INLINE void store(float* target, Floats value) {
  std::memcpy(target, &value, sizeof value);
}

// Round to nearest, ties to even; a NaN stays a NaN.
KVPLAN_INLINE void store(BFloat16* target, Floats value) {
  const Words bits = reinterpret_cast<Words>(value);
  const Words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const Words is_nan = reinterpret_cast<Words>(value != value);
  const Halves halves = __builtin_convertvector((is_nan & 0x7fc0u) | (~is_nan & rounded), Halves);
  std::memcpy(target, &halves, sizeof halves);
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

// The sums of four vectors, side by side.
KVPLAN_INLINE Floats4 sums_of_four(Floats a, Floats b, Floats c, Floats d) {
  const Floats4 fa = fold_to_four(a), fb = fold_to_four(b), fc = fold_to_four(c), fd = fold_to_four(d);
  const Floats4 ab = KVPLAN_SHUFFLE4(fa, fb, 0, 1, 4, 5) + KVPLAN_SHUFFLE4(fa, fb, 2, 3, 6, 7);
  const Floats4 cd = KVPLAN_SHUFFLE4(fc, fd, 0, 1, 4, 5) + KVPLAN_SHUFFLE4(fc, fd, 2, 3, 6, 7);
  return KVPLAN_SHUFFLE4(ab, cd, 0, 2, 4, 6) + KVPLAN_SHUFFLE4(ab, cd, 1, 3, 5, 7);
}

KVPLAN_INLINE void prefetch_bytes(const void* address, int64_t bytes) {
  const char* line = static_cast<const char*>(address);
  for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(line + at);
}

}  // namespace kvplan
