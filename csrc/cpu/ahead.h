// Memory that is needed soon, asked for a few cache lines at a time between other work.
#pragma once

#include "simd.h"

namespace kvplan {

// How many runs of memory attention asks for in turn. One core of an Intel server has few lines on their way from one run
// of addresses, because its own prefetching ends at each page: four runs a page or more apart give 1.3 times as much
// (measured: benchmarks/README.md). Zen 4 and 5 read fastest in the order of addresses, into the first-level cache.
#if defined(__AMX_TILE__)
constexpr int kAheadRuns = 4;
constexpr int kAheadCache = 2;
#else
constexpr int kAheadRuns = 1;
constexpr int kAheadCache = 3;
#endif

// Pieces of memory of as many bytes each, in two rows: piece i < num_first lies i * first_step bytes behind `first`, the
// others likewise behind `second`.
struct Pieces {
  const char* first = nullptr;
  const char* second = nullptr;
  int64_t first_step = 0, second_step = 0;
  int num_first = 0, count = 0;
  int64_t bytes = 0;

  const char* start(int piece) const {
    return piece < num_first ? first + piece * first_step : second + (piece - num_first) * second_step;
  }
};

// Runs of as many bytes each, a line of each in turn: one, or pieces, some at a time.
class Ahead {
 public:
  static constexpr int kTurnLines = 4;

  // One run.
  void begin(const char* run, int64_t bytes) {
    runs_[0] = run;
    count_ = 1, at_ = 0, end_ = bytes, rounds_left_ = 0;
  }

  // The first round of runs are pieces as far apart as their number allows, the next round those behind them, ...
  void begin(const Pieces& pieces) {
    pieces_ = pieces;
    apart_ = rounds_left_ = (pieces.count + kAheadRuns - 1) / kAheadRuns;
    at_ = end_ = 0;
  }

  void stop() { at_ = end_ = 0, rounds_left_ = 0; }

  // kTurnLines lines, of three runs one fewer. Always as many: the end of a loop whose length varies is mispredicted, which
  // costs more than the lines do.
  KVPLAN_INLINE void ask_turn() {
    if (at_ >= end_) {
      if (rounds_left_ == 0) return;
      begin_round();
    }
    const int64_t at = at_;
    if (count_ == 1) {
      for (int line = 0; line < kTurnLines; ++line) prefetch<1>(at + 64 * line);
      at_ = at + 64 * kTurnLines;
    }
    if constexpr (kAheadRuns == 4) {
      if (count_ == 2) {
        prefetch<2>(at);
        prefetch<2>(at + 64);
        at_ = at + 128;
      } else if (count_ == 3) {
        prefetch<3>(at);
        at_ = at + 64;
      } else if (count_ == 4) {
        prefetch<4>(at);
        at_ = at + 64;
      }
    }
  }

 private:
  template <int kRuns>
  KVPLAN_INLINE void prefetch(int64_t at) {
#pragma GCC unroll 4
    for (int run = 0; run < kRuns; ++run) __builtin_prefetch(runs_[run] + at, 0, kAheadCache);
  }

  __attribute__((noinline)) void begin_round() {
    const int round = apart_ - rounds_left_--;
    count_ = 0, at_ = 0, end_ = pieces_.bytes;
    for (int i = round; i < pieces_.count; i += apart_) runs_[count_++] = pieces_.start(i);
  }

  const char* runs_[kAheadRuns] = {};
  int count_ = 0;
  int64_t at_ = 0, end_ = 0;
  Pieces pieces_;
  int apart_ = 0, rounds_left_ = 0;
};

static_assert(kAheadRuns == 1 || kAheadRuns == Ahead::kTurnLines);

}  // namespace kvplan
