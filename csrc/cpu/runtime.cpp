#include "../include/kvplan_cpu.h"
#include "simd_math.h"

int kvplan_lanes(void) {
  return kvplan::kLanes;
}

namespace {

template <class Function>
void map(const float* x, float* y, int64_t n, Function function) {
  for (int64_t i = 0; i < n; i += kvplan::kLanes) {
    const int count = n - i < kvplan::kLanes ? static_cast<int>(n - i) : kvplan::kLanes;
    kvplan::store_part(y + i, function(kvplan::load_part(x + i, count)), count);
  }
}

}  // namespace

void kvplan_exp(const float* x, float* y, int64_t n) {
  map(x, y, n, [](kvplan::Floats v) { return kvplan::exp(v); });
}

void kvplan_tanh(const float* x, float* y, int64_t n) {
  map(x, y, n, [](kvplan::Floats v) { return kvplan::tanh(v); });
}
