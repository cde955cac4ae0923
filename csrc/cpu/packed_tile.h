// The inner loop of products with packed weights, and the layout that it reads.
//
// A weight [outputs, inputs] is cut into panels of kPanelOutputs outputs; within a panel the inputs follow each other,
// each with its kPanelOutputs values side by side:
//
//   panel 0:  w[0..P)[0]  w[0..P)[1]  ...  w[0..P)[inputs - 1]        panel 1:  w[P..2P)[0] ...
//
// so a step along the inputs reads one run of memory, and the whole product reads the weight once, in order. bfloat16
// values of two vectors alternate: as 32-bit words, their upper halves are one vector's floats and their lower halves,
// shifted up, the other's. Unpacking costs an `and` and a shift for every two vectors, next to a dozen multiplications.
#pragma once

#include "simd.h"

namespace kvplan {

// Register tile: kTileRows x kPanelVectors sums are 12 of AVX2's 16 registers, 24 of AVX-512's or NEON's 32.
constexpr int kPanelVectors = kLanes == 8 ? 2 : 4;
constexpr int kPanelOutputs = kPanelVectors * kLanes;
constexpr int kPanelTileRows = 6;

// Where output `lane` of a panel lies among its kPanelOutputs values.
template <class T>
constexpr int panel_position(int lane) {
  if (sizeof(T) == 4) return lane;
  const int vector = lane / kLanes, within = lane % kLanes;
  return vector / 2 * 2 * kLanes + 2 * within + vector % 2;
}

KVPLAN_INLINE void load_panel(const float* source, Floats (&values)[kPanelVectors]) {
#pragma GCC unroll 4
  for (int v = 0; v < kPanelVectors; ++v) values[v] = load(source + v * kLanes);
}

KVPLAN_INLINE void load_panel(const BFloat16* source, Floats (&values)[kPanelVectors]) {
#pragma GCC unroll 2
  for (int v = 0; v < kPanelVectors; v += 2) {
    Words pairs;
    std::memcpy(&pairs, source + v * kLanes, sizeof pairs);
    values[v] = reinterpret_cast<Floats>(pairs << 16);
    values[v + 1] = reinterpret_cast<Floats>(pairs & 0xffff0000u);
  }
}

// What a tile works on: some inputs of kRows rows and of one or more panels.
template <class T>
struct TileStep {
  const float* x;       // [rows, x_stride], at the step's first input
  int64_t x_stride;
  const T* panel;       // at the step's first input
  int64_t panel_stride;  // from panel to panel
  int64_t depth;         // inputs
  float* sums;           // [panels, sums_stride / kPanelOutputs, kPanelOutputs]
  int64_t sums_stride;   // from panel to panel
  bool starts;           // the sums begin here
  const char* ahead;     // memory needed soon: prefetched in steps of ahead_bytes for every input
  int64_t ahead_bytes;
};

// Where memory that is needed soon goes: the numbers of __builtin_prefetch.
enum class Cache { kSecondLevel = 2, kFirstLevel = 3 };

// sums[c][r] (+)= x[r] . panel[c]. The order of additions along the inputs is the same for every kRows and kPanels, so a
// row's result does not depend on the batch it is computed in.
template <class T, int kRows, int kPanels, Cache kAhead>
void run_tile(const TileStep<T>& step) {
  Floats sums[kRows][kPanels][kPanelVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < kPanels; ++c)
#pragma GCC unroll 4
      for (int v = 0; v < kPanelVectors; ++v)
        sums[r][c][v] = step.starts ? Floats{} : load(step.sums + c * step.sums_stride + r * kPanelOutputs + v * kLanes);
  const float* x = step.x;
  const T* panel = step.panel;
  const char* ahead = step.ahead;
  for (int64_t k = 0; k < step.depth; ++k, ++x, panel += kPanelOutputs, ahead += step.ahead_bytes) {
    __builtin_prefetch(ahead, 0, static_cast<int>(kAhead));
    Floats weights[kPanels][kPanelVectors];
#pragma GCC unroll 4
    for (int c = 0; c < kPanels; ++c) load_panel(panel + c * step.panel_stride, weights[c]);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Floats value = splat(x[r * step.x_stride]);
#pragma GCC unroll 4
      for (int c = 0; c < kPanels; ++c)
#pragma GCC unroll 4
        for (int v = 0; v < kPanelVectors; ++v) sums[r][c][v] += value * weights[c][v];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < kPanels; ++c)
#pragma GCC unroll 4
      for (int v = 0; v < kPanelVectors; ++v)
        store(step.sums + c * step.sums_stride + r * kPanelOutputs + v * kLanes, sums[r][c][v]);
}

}  // namespace kvplan
