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

// Of a cache line.
constexpr std::size_t kLineBytes = 64;

// Items in [0, items), in order: each thread takes the next one when it has finished one, so that items of uneven cost
// balance.
class ItemQueue {
 public:
  explicit ItemQueue(int64_t items) : items_(items) {}

  // body(item) for the items that this thread gets.
  template <class Body>
  void take(const Body& body) {
    for (;;) {
      const int64_t item = next_.fetch_add(1, std::memory_order_relaxed);
      if (item >= items_) return;
      body(item);
    }
  }

 private:
  std::atomic<int64_t> next_{0};
  int64_t items_;
};

// Items in [0, items), in any order. Each thread has a share of neighbouring items, the same ones in every call of as many,
// so that rows that it has written stay in its cache and memory is read in one run (measured: benchmarks/README.md). When
// it is through with them it takes items from the others' shares.
class ItemShares {
 public:
  ItemShares(int64_t items, int64_t threads) : items_(items) {
    const int64_t wanted = items < threads ? items : threads;
    count_ = wanted < 1 ? 1 : (wanted < kMostShares ? wanted : kMostShares);
    for (int64_t i = 0; i < count_; ++i) {
      shares_[i].next.store(items * i / count_, std::memory_order_relaxed);
      shares_[i].end = items * (i + 1) / count_;
    }
  }

  // body(item, next) for the items that this thread gets. next(): the item that it would take if it took one now, or the
  // number of items: none of this share.
  template <class Body>
  void take(int worker, const Body& body) {
    for (int64_t i = 0; i < count_; ++i) {
      Share& share = shares_[(worker + i) % count_];
      const auto next = [&] {
        const int64_t item = share.next.load(std::memory_order_relaxed);
        return item < share.end ? item : items_;
      };
      for (;;) {
        const int64_t item = share.next.fetch_add(1, std::memory_order_relaxed);
        if (item >= share.end) break;
        body(item, next);
      }
    }
  }

 private:
  static constexpr int64_t kMostShares = 64;

  struct alignas(kLineBytes) Share {
    std::atomic<int64_t> next;
    int64_t end;
  };

  int64_t items_, count_;
  Share shares_[kMostShares];
};

// body(worker, item) for every item in [0, items), in order. Threads that do not come in time leave their items to the
// others, here and below.
template <class Body>
void for_each_item(int64_t items, int threads, const Body& body) {
  ItemQueue queue(items);
  on_team(items < threads ? items : threads,
          [&](int worker) { queue.take([&](int64_t item) { body(worker, item); }); });
}

// body(worker, item, next) for every item in [0, items), by shares.
template <class Body>
void for_each_shared_item(int64_t items, int threads, const Body& body) {
  ItemShares shares(items, threads);
  on_team(items < threads ? items : threads, [&](int worker) {
    shares.take(worker, [&](int64_t item, const auto& next) { body(worker, item, next); });
  });
}

// first(item) for every item in [0, first_items), then shared(item, next) for every item in [0, shared_items) by shares, then
// last(item) for every item in [0, last_items), in one call: nothing else begins before all first items have ended.
template <class First, class Shared, class Last>
void for_each_item_in_turn(int64_t first_items, const First& first, int64_t shared_items, const Shared& shared,
                           int64_t last_items, const Last& last, int threads) {
  const int64_t items = first_items + shared_items + last_items;
  std::atomic<int64_t> left{first_items};
  ItemQueue firsts(first_items), lasts(last_items);
  ItemShares shares(shared_items, threads);
  on_team(items < threads ? items : threads, [&](int worker) {
    firsts.take([&](int64_t item) {
      first(item);
      left.fetch_sub(1, std::memory_order_release);
    });
    while (left.load(std::memory_order_acquire) > 0) pause_briefly();
    shares.take(worker, shared);
    lasts.take(last);
  });
}

// The same without last items.
template <class First, class Shared>
void for_each_item_in_turn(int64_t first_items, const First& first, int64_t shared_items, const Shared& shared,
                           int threads) {
  for_each_item_in_turn(first_items, first, shared_items, shared, 0, [](int64_t) {}, threads);
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
