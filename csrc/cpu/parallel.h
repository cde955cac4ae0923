// Work shared over the library's threads.
#pragma once

#include <atomic>
#include <cstddef>
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

// work(worker) on the calling thread and on up to `wanted` - 1 others that come in time; worker < wanted is a number of the
// thread's own, mostly the same from call to call, so that its scratch stays in its cache.
template <class Work>
void on_team(int64_t wanted, const Work& work) {
  if (wanted <= 1) return work(0);
  const auto run = [](void* data, int worker) { (*static_cast<const Work*>(data))(worker); };
  run_on_team(run, const_cast<Work*>(&work), static_cast<int>(wanted));
}

// body(worker, item) for every item in [0, items), in order: each thread takes the next item when it has finished one, so
// that items of uneven cost balance. Threads that do not come in time leave their items to the others.
template <class Body>
void for_each_item(int64_t items, int threads, const Body& body) {
  std::atomic<int64_t> next{0};
  on_team(items < threads ? items : threads, [&](int worker) {
    for (;;) {
      const int64_t item = next.fetch_add(1, std::memory_order_relaxed);
      if (item >= items) return;
      body(worker, item);
    }
  });
}

// Of a cache line.
constexpr std::size_t kLineBytes = 64;

// A thread's share of the items, in a cache line of its own.
struct alignas(kLineBytes) ItemShare {
  std::atomic<int64_t> next;
  int64_t end;
};

// body(worker, item, next) for every item in [0, items), in any order. Each thread has a share of neighbouring items, the
// same ones in every call of as many, so that rows that it has written stay in its cache (measured: benchmarks/README.md).
// When it is through with them it takes items from the others' shares. next(): the item that this thread would take if it
// took one now; `items`: none of this share.
template <class Body>
void for_each_shared_item(int64_t items, int threads, const Body& body) {
  constexpr int64_t kMostShares = 64;
  const int64_t wanted = items < threads ? items : threads;
  const int64_t count = wanted < 1 ? 1 : (wanted < kMostShares ? wanted : kMostShares);
  ItemShare shares[kMostShares];
  for (int64_t i = 0; i < count; ++i) {
    shares[i].next.store(items * i / count, std::memory_order_relaxed);
    shares[i].end = items * (i + 1) / count;
  }
  on_team(wanted, [&](int worker) {
    for (int64_t i = 0; i < count; ++i) {
      ItemShare& share = shares[(worker + i) % count];
      const auto next = [&] {
        const int64_t item = share.next.load(std::memory_order_relaxed);
        return item < share.end ? item : items;
      };
      for (;;) {
        const int64_t item = share.next.fetch_add(1, std::memory_order_relaxed);
        if (item >= share.end) break;
        body(worker, item, next);
      }
    }
  });
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
  for_each_shared_item(ranges, threads, [&](int, int64_t range, const auto&) {
    body(count * range / ranges, count * (range + 1) / ranges);
  });
}

// Rows of `width` elements, enough of them per range to be worth waking a thread for (about 4 microseconds of work).
inline int64_t row_grain(int64_t width) {
  constexpr int64_t kElements = 8192;
  return width >= kElements ? 1 : kElements / (width > 0 ? width : 1);
}

}  // namespace kvplan
