// What the comparisons of cross_check.cpp are made of: tensors, random numbers, the worst error, threads.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "kvplan_cpu.h"


inline constexpr int kStorages[] = {KVPLAN_FLOAT32, KVPLAN_BFLOAT16};
inline const char* const kStorageNames[] = {"float32", "bfloat16", "fp8", "int8"};

inline int64_t element_size(int storage) { return storage == KVPLAN_FLOAT32 ? 4 : storage == KVPLAN_BFLOAT16 ? 2 : 1; }

struct Random {
  uint64_t state;
  uint64_t bits() {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return state >> 33;
  }
  double operator()() { return static_cast<double>(bits()) / 1073741824.0 - 1.0; }  // [-1, 1)
};

inline double fp8_value(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double size = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (code & 127) == 127 ? NAN : (code & 128 ? -size : size);
}

inline const std::vector<double>& fp8_values() {
  static const std::vector<double> values = [] {
    std::vector<double> all;
    for (int code = 0; code < 256; ++code) all.push_back(fp8_value(code));
    return all;
  }();
  return values;
}

// The nearest of all values; of two as near, the one with an even code.
inline int fp8_code(double value) {
  const int sign = std::signbit(value) ? 128 : 0;
  if (std::isnan(value)) return sign | 127;
  const double* values = fp8_values().data();
  const double size = std::fmin(std::fabs(value), 448.0);
  int best = 0;
  for (int code = 1; code < 127; ++code) {
    const double nearer = std::fabs(values[best] - size) - std::fabs(values[code] - size);
    if (nearer > 0 || (nearer == 0 && code % 2 == 0)) best = code;
  }
  return sign | best;
}

inline float bfloat16_nearest(double value) {
  if (value == 0 || !std::isfinite(value)) return static_cast<float>(value);
  int exponent;
  std::frexp(value, &exponent);
  return static_cast<float>(std::ldexp(std::nearbyint(std::ldexp(value, 8 - exponent)), exponent - 8));
}

// Values of one storage (of int8: the integers, a NaN being 99), in an allocation of just the right size: the address sanitizer sees a step beyond it.
struct Tensor {
  int storage;
  std::vector<unsigned char> bytes;

  Tensor(int kind, int64_t count, double value = 0) : storage(kind), bytes(static_cast<size_t>(count * (element_size(kind)))) {
    for (int64_t i = 0; i < count; ++i) put(i, value);
  }
  Tensor(int kind, int64_t count, Random& random, double size) : Tensor(kind, count) {
    for (int64_t i = 0; i < count; ++i) put(i, size * random());
  }
  void* data() { return bytes.data(); }
  void* from(int64_t index) { return bytes.data() + index * element_size(storage); }
  int64_t count() const { return static_cast<int64_t>(bytes.size()) / element_size(storage); }
  void put(int64_t index, double value) {
    const float single = storage == KVPLAN_BFLOAT16 ? bfloat16_nearest(value) : static_cast<float>(value);
    uint32_t bits;
    std::memcpy(&bits, &single, 4);
    if (storage == KVPLAN_BFLOAT16) bits >>= 16;
    if (storage == KVPLAN_FLOAT8_E4M3) bits = static_cast<uint32_t>(fp8_code(value));
    if (storage == KVPLAN_INT8) bits = std::isnan(value) ? 99u : static_cast<uint32_t>(std::lrint(value));
    std::memcpy(from(index), &bits, static_cast<size_t>(element_size(storage)));  // little endian
  }
  double at(int64_t index) const {
    uint32_t bits = 0;
    std::memcpy(&bits, bytes.data() + index * element_size(storage), static_cast<size_t>(element_size(storage)));
    if (storage == KVPLAN_FLOAT8_E4M3) return fp8_values()[bits];
    if (storage == KVPLAN_INT8) return static_cast<int8_t>(bits);
    if (storage == KVPLAN_BFLOAT16) bits <<= 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
  }
  std::vector<double> values() const {
    std::vector<double> all;
    for (int64_t i = 0; i < count(); ++i) all.push_back(at(i));
    return all;
  }
};

inline int failures = 0, checks = 0, threads = 1;

// The worst of one check's comparisons, as an error and as a share of what is allowed.
struct Worst {
  std::string name;
  double error = 0, share = 0;

  explicit Worst(std::string check) : name(std::move(check)) {}
  ~Worst() {
    ++checks;
    failures += !(share <= 1);
    std::printf("%-4s %-62s %d thread%s error %.1e, %.2f of the allowed\n", share <= 1 ? "ok" : "BAD", name.c_str(),
                threads, threads > 1 ? "s" : " ", error, share);
  }
  // Allowed: a rounding to `storage`, and `slack` (0 with float32: equal).
  void see(double got, double want, int storage, double slack) {
    if (std::isnan(want) ? std::isnan(got) : got == want) return;
    const double relative = storage == KVPLAN_BFLOAT16 ? 0x1.02p-8 : (slack > 0 ? 2e-6 : 0);
    const double difference = std::isnan(got - want) ? INFINITY : std::fabs(got - want);
    const double allowed = relative * std::fabs(want) + slack;
    error = std::max(error, difference);
    share = std::max(share, allowed > 0 ? difference / allowed : INFINITY);
  }
  void expect(bool right) { see(right, 1, KVPLAN_FLOAT32, 0); }
};

inline double silu(double x) { return x / (1 + std::exp(-x)); }
inline double gelu_tanh(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
inline double gelu_erf(double x) { return 0.5 * x * std::erfc(-x / std::sqrt(2.0)); }
