// The inner loop of products with packed weights, and the layout that it reads.
//
// A weight [outputs, inputs] is cut into panels of kPanelOutputs outputs; within a panel the inputs follow each other,
// each with its kPanelOutputs values side by side:
//
//   panel 0:  w[0..P)[0]  w[0..P)[1]  ...  w[0..P)[inputs - 1]        panel 1:  w[P..2P)[0] ...
//
// so a step along the inputs reads one run of memory, and the whole product reads the weight once, in order. bfloat16
// inputs go in pairs: a 32-bit word holds two inputs of one output, the first in its lower half, and an odd number of
// inputs is filled up with a zero. That is what the processors' dot products of bfloat16 read (two inputs of each output
// at once); elsewhere a word's halves, shifted up or masked, are floats.
#pragma once

#include "../../pairs.h"

namespace kvplan {

// Register tile: kTileRows x kPanelVectors sums are 12 of AVX2's 16 registers, 24 of AVX-512's or NEON's 32.
constexpr int kPanelVectors = kLanes == 8 ? 2 : 4;
constexpr int kPanelOutputs = kPanelVectors * kLanes;
constexpr int kPanelTileRows = 6;
// A tall tile has half of the vectors at a time, and more rows: up to 10 of AVX2's registers, 20 of AVX-512's or NEON's.
// Intel's servers (those with AMX) read memory faster so with few rows, too, and ten rows faster in two tiles (measured:
// benchmarks/README.md).
#if defined(__AMX_TILE__)
constexpr int kLeastTallRows = 3, kTallTileRows = 9;
#else
constexpr int kLeastTallRows = 7, kTallTileRows = 10;
#endif

// What a kind of weight is multiplied with: the type of x, and how many inputs one step of the inner loop takes.
template <class T>
struct Inner;
template <>
struct Inner<float> {
  using Input = float;
  static constexpr int kInputs = 1;
};
template <>
struct Inner<BFloat16> {
#if KVPLAN_PAIR_DOT
  using Input = BFloat16;
#else
  using Input = float;
#endif
  static constexpr int kInputs = 2;
};

// Inputs of a packed weight, those that fill it up included.
template <class T>
constexpr int64_t packed_inputs(int64_t inputs) {
  return (inputs + Inner<T>::kInputs - 1) / Inner<T>::kInputs * Inner<T>::kInputs;
}

// Where input k of output `lane` lies in its panel.
template <class T>
constexpr int64_t panel_position(int64_t k, int lane) {
  constexpr int n = Inner<T>::kInputs;
  return k / n * n * kPanelOutputs + lane * n + k % n;
}

// What a tile works on: some inputs of kRows rows and of one or more panels.
template <class T>
struct TileStep {
  const typename Inner<T>::Input* x;  // [rows, x_stride], at the step's first input
  int64_t x_stride;
  const T* panel;        // at the step's first input
  int64_t panel_stride;  // from panel to panel
  int64_t depth;         // inputs
  float* sums;           // [panels, sums_stride / kPanelOutputs, kPanelOutputs]
  int64_t sums_stride;   // from panel to panel
  bool starts;           // the sums begin here
  const char* ahead;     // memory needed soon: prefetched while the loop runs, see run_tile
  int64_t ahead_bytes;   // from one group of inputs to the next
};

template <int kRows, int kPanels, int kVectors = kPanelVectors>
using TileSums = Floats[kRows][kPanels][kVectors];

// sums += x * weights for one input.
template <int kRows, int kPanels, int kVectors = kPanelVectors>
KVPLAN_INLINE void add_inputs(TileSums<kRows, kPanels, kVectors>& sums, const float* x, int64_t x_stride,
                              const float* panel, int64_t panel_stride) {
  Floats weights[kPanels][kVectors];
#pragma GCC unroll 4
  for (int c = 0; c < kPanels; ++c)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) weights[c][v] = load(panel + c * panel_stride + v * kLanes);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    const Floats value = splat(x[r * x_stride]);
#pragma GCC unroll 4
    for (int c = 0; c < kPanels; ++c)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[r][c][v] += value * weights[c][v];
  }
}

// The same for a pair of inputs, one after the other, widened.
template <int kRows, int kPanels, int kVectors = kPanelVectors>
KVPLAN_INLINE void add_inputs(TileSums<kRows, kPanels, kVectors>& sums, const float* x, int64_t x_stride,
                              const BFloat16* panel, int64_t panel_stride) {
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    Floats weights[kPanels][kVectors];
#pragma GCC unroll 4
    for (int c = 0; c < kPanels; ++c)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const Words words = load_words(panel + c * panel_stride + v * 2 * kLanes);
        weights[c][v] = reinterpret_cast<Floats>(half == 0 ? words << 16 : words & 0xffff0000u);
      }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Floats value = splat(x[r * x_stride + half]);
#pragma GCC unroll 4
      for (int c = 0; c < kPanels; ++c)
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sums[r][c][v] += value * weights[c][v];
    }
  }
}

#if KVPLAN_PAIR_DOT
// The same by the processor's dot products of pairs, x in bfloat16 too.
template <int kRows, int kPanels, int kVectors = kPanelVectors>
KVPLAN_INLINE void add_inputs(TileSums<kRows, kPanels, kVectors>& sums, const BFloat16* x, int64_t x_stride,
                              const BFloat16* panel, int64_t panel_stride) {
  Pairs weights[kPanels][kVectors];
#pragma GCC unroll 4
  for (int c = 0; c < kPanels; ++c)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) weights[c][v] = load_pairs(panel + c * panel_stride + v * 2 * kLanes);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    const Pairs value = splat_pair(x + r * x_stride);
#pragma GCC unroll 4
    for (int c = 0; c < kPanels; ++c)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[r][c][v] = add_pairs(sums[r][c][v], value, weights[c][v]);
  }
}
#endif

// Where memory that is needed soon goes: the numbers of __builtin_prefetch.
enum class Cache { kSecondLevel = 2, kFirstLevel = 3 };

// sums[c][r] (+)= x[r] . panel[c], some kVectors of the panel's vectors after the others. The order of additions along the
// inputs is the same for every kRows, kPanels and kVectors, so a row's result does not depend on the batch it is computed
// in. With every group of inputs kAheadLines cache lines are prefetched: a line that nobody asks for in time is waited for,
// which no other row's work hides.
template <class T, int kRows, int kPanels, int kVectors, Cache kAhead, int kAheadLines>
void run_tile(const TileStep<T>& step) {
  constexpr int kInputs = Inner<T>::kInputs;
  const char* ahead = step.ahead;
  // one loop for all vectors: the processor's own prefetching knows a run of memory by the instruction that reads it
  for (int first = 0; first < kPanelVectors; first += kVectors) {
    TileSums<kRows, kPanels, kVectors> sums;
    float* target = step.sums + first * kLanes;
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (int c = 0; c < kPanels; ++c)
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v)
          sums[r][c][v] = step.starts ? Floats{} : load(target + c * step.sums_stride + r * kPanelOutputs + v * kLanes);
    const typename Inner<T>::Input* x = step.x;
    const T* panel = step.panel + first * kLanes * kInputs;
    for (int64_t k = 0; k < step.depth; k += kInputs) {
#pragma GCC unroll 4
      for (int line = 0; line < kAheadLines; ++line) __builtin_prefetch(ahead + line * 64, 0, static_cast<int>(kAhead));
      add_inputs<kRows, kPanels, kVectors>(sums, x, step.x_stride, panel, step.panel_stride);
      x += kInputs;
      panel += kInputs * kPanelOutputs;
      ahead += step.ahead_bytes;
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (int c = 0; c < kPanels; ++c)
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v)
          store(target + c * step.sums_stride + r * kPanelOutputs + v * kLanes, sums[r][c][v]);
  }
}

}  // namespace kvplan
