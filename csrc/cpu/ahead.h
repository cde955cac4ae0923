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

// Runs of as many bytes each, a line of each in turn.
class Ahead {
 public:
  static constexpr int kMostRuns = 4;

  void restart() { rounds_ = 0, at_ = end_ = 0; }
  void begin(int64_t run_bytes) { ++rounds_, count_ = turn_ = 0, at_ = 0, end_ = run_bytes; }
  void add(const char* run) { runs_[count_++] = run; }
  void stop() { at_ = end_ = 0; }
  int rounds() const { return rounds_; }  // begun since restart()
  bool is_done() const { return at_ >= end_; }

  KVPLAN_INLINE void ask(int lines) {
    for (int i = 0; i < lines && at_ < end_; ++i) {
      __builtin_prefetch(runs_[turn_] + at_, 0, kAheadCache);
      if (++turn_ >= count_) turn_ = 0, at_ += 64;
    }
  }

 private:
  const char* runs_[kMostRuns] = {};
  int rounds_ = 0, count_ = 0, turn_ = 0;
  int64_t at_ = 0, end_ = 0;
};

static_assert(kAheadRuns <= Ahead::kMostRuns);

}  // namespace kvplan
