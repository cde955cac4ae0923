// How many helpers are called, where other processes take their cores.
#pragma once

#include <chrono>

namespace kvplan {

// A helper that loses its core in the middle of a piece of work holds everybody up until it gets it back: about three
// milliseconds on Linux, as long as a hundred calls. So after a loss one helper fewer is called, at first for about as long,
// and for twice as long after each further loss that follows soon. Meanwhile no call waits, and the other process has the
// core to itself. A single loss costs next to nothing.
class HelperRest {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr std::chrono::milliseconds kShortest{4};
  static constexpr std::chrono::milliseconds kLongest{256};

  // How many of so many helpers are called now. The clock is read only while some rest.
  int called_of(int helpers) { return num_resting_ == 0 ? helpers : called_of(helpers, std::chrono::steady_clock::now()); }

  int called_of(int helpers, Time now) {
    if (num_resting_ > 0 && now >= end_) {
      --num_resting_;
      end_ = now + length_;  // of the next one
    }
    return helpers > num_resting_ ? helpers - num_resting_ : 0;
  }

  // One of so many helpers has lost its core.
  void note_loss(int helpers, Time now) {
    const bool is_soon = now < end_ + 2 * length_;
    length_ = !is_soon ? kShortest : (2 * length_ < kLongest ? 2 * length_ : kLongest);
    if (num_resting_ < helpers) ++num_resting_;
    end_ = now + length_;
  }

 private:
  int num_resting_ = 0;
  std::chrono::milliseconds length_ = kShortest;
  Time end_{};
};

}  // namespace kvplan
