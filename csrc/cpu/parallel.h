// Work shared over the library's threads.
#pragma once

#include <atomic>
#include <cstdint>

#include "thread_team.h"

namespace kvplan {

// A hint to the processor that this is a waiting loop.
inline void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// body(worker, item, next) for every item in [0, items): each thread takes the next item when it has finished one, so that
// items of uneven cost balance. worker < threads is a number of the thread's own, for its scratch. next(): the item that
// this thread would take if it took one now, `items` or more: none. Threads that do not come in time leave their items to
// the others.
template <class Body>
void for_each_item_foreseen(int64_t items, int threads, const Body& body) {
  const int64_t wanted = items < threads ? items : threads;
  struct Shared {
    const Body& body;
    const int64_t items;
    std::atomic<int64_t> next_item{0};
    std::atomic<int> next_worker{0};
  } shared{body, items};
  const auto run = [](void* data) {
    Shared& work = *static_cast<Shared*>(data);
    const int worker = work.next_worker.fetch_add(1, std::memory_order_relaxed);
    for (;;) {
      const int64_t item = work.next_item.fetch_add(1, std::memory_order_relaxed);
      if (item >= work.items) return;
      work.body(worker, item, [&] { return work.next_item.load(std::memory_order_relaxed); });
    }
  };
  if (wanted <= 1) {
    run(&shared);
  } else {
    run_on_team(run, &shared, static_cast<int>(wanted));
  }
}

// The same for a body(worker, item).
template <class Body>
void for_each_item(int64_t items, int threads, const Body& body) {
  for_each_item_foreseen(items, threads, [&](int worker, int64_t item, const auto&) { body(worker, item); });
}

// first(item) for every item in [0, first_items), then second(item) for every item in [0, second_items), in one go: no
// second item begins before all first ones have ended.
template <class First, class Second>
void for_each_item_in_turn(int64_t first_items, const First& first, int64_t second_items, const Second& second,
                           int threads) {
  std::atomic<int64_t> left{first_items};
  for_each_item(first_items + second_items, threads, [&](int, int64_t item) {
    if (item < first_items) {
      first(item);
      left.fetch_sub(1, std::memory_order_release);
      return;
    }
    while (left.load(std::memory_order_acquire) > 0) pause_briefly();
    second(item - first_items);
  });
}

// body(begin, end) over [0, count) in ranges of at least `grain`; a small count runs on the calling thread.
template <class Body>
void for_each_range(int64_t count, int64_t grain, int threads, const Body& body) {
  if (count <= 0) return;
  const int64_t by_grain = (count + grain - 1) / grain;
  const int64_t by_threads = 2 * static_cast<int64_t>(threads);  // two ranges a thread: one late thread costs half
  const int64_t ranges = threads <= 1 ? 1 : (by_grain < by_threads ? by_grain : by_threads);
  for_each_item(ranges, threads, [&](int, int64_t range) {
    body(count * range / ranges, count * (range + 1) / ranges);
  });
}

// Rows of `width` elements, enough of them per range to be worth waking a thread for (about 4 microseconds of work).
inline int64_t row_grain(int64_t width) {
  constexpr int64_t kElements = 8192;
  return width >= kElements ? 1 : kElements / (width > 0 ? width : 1);
}

}  // namespace kvplan
