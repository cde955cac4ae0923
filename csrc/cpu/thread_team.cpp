// Why not the OpenMP runtime: a parallel region of it ends when every thread of the team has been in it. As soon as
// another process needs a core, one of them has to wait for it, milliseconds in each of a step's hundreds of regions.
#include "thread_team.h"

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <new>

#include "parallel.h"

namespace kvplan {
namespace {

using Clock = std::chrono::steady_clock;

// How long somebody waits awake: as long as a step's Python between two calls takes, and as a piece of work takes. A
// thread that sleeps leaves its core to the one that it may be waiting for.
constexpr std::chrono::microseconds kHelperPatience{100};
constexpr std::chrono::microseconds kCallerPatience{30};
constexpr int kMostHelpers = 255;
constexpr size_t kStackBytes = size_t{1} << 20;

template <class Condition>
bool comes_true(const Condition& condition, std::chrono::microseconds patience) {
  const Clock::time_point end = Clock::now() + patience;
  do {
    for (int i = 0; i < 64; ++i) {
      if (condition()) return true;
      pause_briefly();
    }
  } while (Clock::now() < end);
  return false;
}

// A call is open as long as it has seats. Seats and the call's number are one word, so that a helper that comes late
// cannot take a seat in a call that has ended.
class ThreadTeam {
 public:
  void run(void (*body)(void*, int), void* data, int helpers) {
    if (busy_.exchange(true, std::memory_order_acquire)) return body(data, 0);
    start(helpers < kMostHelpers ? helpers : kMostHelpers);
    const uint64_t seats = static_cast<uint64_t>(helpers < num_helpers_ ? helpers : num_helpers_);
    body_ = body;
    data_ = data;
    finished_.store(0, std::memory_order_relaxed);
    const uint64_t call = (call_.load(std::memory_order_relaxed) / kSeats + 1) * kSeats;
    call_.store(call + seats);
    wake_helpers();
    body(data, 0);
    const uint64_t left = call_.exchange(call) - call;
    wait_for(seats - left);
    busy_.store(false, std::memory_order_release);
  }

 private:
  static constexpr uint64_t kSeats = 256;

  // As many helpers as that, or as the system lets there be. They end with the process.
  void start(int helpers) {
    while (num_helpers_ < helpers && start_one()) ++num_helpers_;
  }

  bool start_one() {
    if (is_refused_) return false;
    sigset_t all, before;
    sigfillset(&all);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, kStackBytes);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the program's own threads
    pthread_t thread;
    const auto help = [](void* team) -> void* { static_cast<ThreadTeam*>(team)->help(); };
    is_refused_ = pthread_create(&thread, &attributes, help, this) != 0;
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    pthread_attr_destroy(&attributes);
    return !is_refused_;
  }

  [[noreturn]] void help() {
    for (;;) {
      const auto is_open = [this] { return call_.load(std::memory_order_relaxed) % kSeats != 0; };
      if (!comes_true(is_open, kHelperPatience)) sleep_until_open();
      const int seat = take_seat();
      if (seat == 0) continue;
      body_(data_, seat);
      finished_.fetch_add(1);
      if (caller_sleeps_.load()) {
        const std::lock_guard<std::mutex> lock(mutex_);
        caller_.notify_one();
      }
    }
  }

  // The last free one; 0: none.
  int take_seat() {
    uint64_t call = call_.load(std::memory_order_relaxed);
    while (call % kSeats != 0)
      if (call_.compare_exchange_weak(call, call - 1, std::memory_order_acquire, std::memory_order_relaxed))
        return static_cast<int>(call % kSeats);
    return 0;
  }

  // Whoever goes to sleep says so before it looks a last time, and who has news looks for sleepers after it: one of
  // them sees the other (both in the one order of sequentially consistent operations).
  void sleep_until_open() {
    std::unique_lock<std::mutex> lock(mutex_);
    sleeping_helpers_.fetch_add(1);
    helpers_.wait(lock, [this] { return call_.load() % kSeats != 0; });
    sleeping_helpers_.fetch_sub(1);
  }

  void wake_helpers() {
    if (sleeping_helpers_.load() == 0) return;
    { const std::lock_guard<std::mutex> lock(mutex_); }
    helpers_.notify_all();
  }

  void wait_for(uint64_t helpers) {
    if (comes_true([&] { return finished_.load(std::memory_order_acquire) == helpers; }, kCallerPatience)) return;
    std::unique_lock<std::mutex> lock(mutex_);
    caller_sleeps_.store(true);
    caller_.wait(lock, [&] { return finished_.load() == helpers; });
    caller_sleeps_.store(false);
  }

  // In lines of their own: what callers write, what they write for helpers that poll it, what these answer.
  alignas(kLineBytes) std::atomic<bool> busy_{false};
  int num_helpers_ = 0;  // this and the next: only of who is busy
  bool is_refused_ = false;
  alignas(kLineBytes) std::atomic<uint64_t> call_{0};  // the call's number x kSeats + its free seats
  void (*body_)(void*, int) = nullptr;
  void* data_ = nullptr;
  alignas(kLineBytes) std::atomic<uint64_t> finished_{0};
  alignas(kLineBytes) std::atomic<int> sleeping_helpers_{0};
  std::atomic<bool> caller_sleeps_{false};
  std::mutex mutex_;
  std::condition_variable helpers_, caller_;
};

// Never destroyed: helpers sleep in it when the process ends.
alignas(ThreadTeam) unsigned char team_storage[sizeof(ThreadTeam)];

ThreadTeam& the_team() { return *reinterpret_cast<ThreadTeam*>(team_storage); }

// A forked process has none of the helpers.
void make_team() { new (team_storage) ThreadTeam(); }

}  // namespace

void run_on_team(void (*body)(void*, int), void* data, int threads) {
  static const bool is_made = [] {
    make_team();
    pthread_atfork(nullptr, nullptr, make_team);
    return true;
  }();
  static_cast<void>(is_made);
  the_team().run(body, data, threads - 1);
}

}  // namespace kvplan
