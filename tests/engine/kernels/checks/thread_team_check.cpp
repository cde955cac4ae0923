// The kernels' threads under stress, alone: every item once, nothing after the end, from several threads, after a fork.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "helper_rest.h"
#include "parallel.h"

namespace {

int failures = 0;

void expect(bool right, const char* what) {
  if (right) return;
  std::printf("wrong: %s\n", what);
  ++failures;
}

// Each of `items` adds one to its place; places are on this call's stack, so a helper that comes late writes into the
// next call's.
bool every_item_once(int items, int threads) {
  std::vector<int> times(static_cast<size_t>(items), 0);
  std::atomic<bool> has_worker{true};
  kvplan::for_each_item(items, threads, [&](int worker, int64_t item) {
    if (worker < 0 || worker >= threads) has_worker.store(false);
    ++times[static_cast<size_t>(item)];
  });
  for (int count : times)
    if (count != 1) return false;
  return has_worker.load();
}

bool many_calls(int calls) {
  for (int i = 0; i < calls; ++i) {
    if (!every_item_once(1 + i % 37, 1 + i % 5)) return false;
    // sometimes so late that helpers, and after a long item the caller, have gone to sleep
    if (i % 400 == 399) std::this_thread::sleep_for(std::chrono::microseconds(300));
  }
  return true;
}

bool uneven_items() {
  std::atomic<int> ended{0};
  for (int call = 0; call < 20; ++call)
    kvplan::for_each_item(3, 3, [&](int, int64_t item) {
      if (item == call % 3) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ended.fetch_add(1);
    });
  return ended.load() == 60;
}

bool in_turn() {
  for (int call = 0; call < 500; ++call) {
    std::atomic<int> first{0}, last{0};
    std::atomic<int> times[5] = {};
    std::atomic<bool> right{true};
    const auto check = [&] {
      if (first.load() != 7) right.store(false);
    };
    kvplan::for_each_item_in_turn(
        7, [&](int64_t) { first.fetch_add(1); }, 5,
        [&](int64_t item, const auto& next) {
          check();
          times[item].fetch_add(1);
          if (next() != 5 && next() <= item) right.store(false);
        },
        3,
        [&](int64_t) {
          check();
          last.fetch_add(1);
        },
        4);
    for (const std::atomic<int>& each : times)
      if (each.load() != 1) return false;
    if (!right.load() || last.load() != 3) return false;
  }
  return true;
}

bool nested() {
  std::atomic<int> count{0};
  kvplan::for_each_item(8, 3, [&](int, int64_t) {
    kvplan::for_each_item(8, 3, [&](int, int64_t) { count.fetch_add(1); });
  });
  return count.load() == 64;
}

bool several_callers() {
  std::atomic<bool> right{true};
  std::vector<std::thread> callers;
  for (int i = 0; i < 3; ++i)
    callers.emplace_back([&] {
      if (!many_calls(2000)) right.store(false);
    });
  for (std::thread& caller : callers) caller.join();
  return right.load();
}

bool after_a_fork() {
  const pid_t child = fork();
  if (child == 0) _exit(many_calls(2000) ? 0 : 1);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 && many_calls(100);
}

// A helper rests after it lost its core, longer each time that happens again soon, and is called again in the end.
bool rests() {
  using std::chrono::milliseconds;
  kvplan::HelperRest rest;
  const kvplan::HelperRest::Time start = std::chrono::steady_clock::now();
  const auto called = [&](int after) { return rest.called_of(3, start + milliseconds(after)); };
  if (called(0) != 3) return false;
  rest.note_loss(3, start);
  if (called(3) != 2 || called(4) != 3) return false;
  rest.note_loss(3, start + milliseconds(5));  // soon: 8 ms
  if (called(12) != 2 || called(13) != 3) return false;
  for (int after = 14; after < 18; ++after) rest.note_loss(3, start + milliseconds(after));  // of all three: 128 ms
  if (called(18) != 0 || called(144) != 0 || called(145) != 1 || called(272) != 1 || called(273) != 2) return false;
  if (called(401) != 3) return false;
  rest.note_loss(3, start + milliseconds(2000));  // long after
  return called(2003) == 2 && called(2004) == 3;
}

}  // namespace

int main(int count, char**) {
  expect(many_calls(20000), "every item once");
  expect(uneven_items(), "items of uneven length");
  expect(in_turn(), "second items after the first");
  expect(nested(), "a call within a call");
  expect(rests(), "helpers rest");
  expect(several_callers(), "calls from several threads");
  if (count == 1) expect(after_a_fork(), "calls after a fork");  // a thread sanitizer does not follow one
  std::printf("%d wrong\n", failures);
  return failures > 0;
}
