// Why not the OpenMP runtime: a parallel region of it ends when every thread of the team has been in it. As soon as
// another process needs a core, one of them has to wait for it, milliseconds in each of a step's hundreds of regions.
#include "thread_team.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <new>

#include "helper_rest.h"
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

// A helper that the caller waits for this long, and that ran for less than half of the time, has lost its core to another
// process (helper_rest.h).
constexpr std::chrono::microseconds kLateAfter{300};

// Processor time of a thread.
std::chrono::nanoseconds cpu_time(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

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
    const uint64_t seats = static_cast<uint64_t>(rest_.called_of(helpers < num_helpers_ ? helpers : num_helpers_));
    body_ = body;
    data_ = data;
    finished_.store(0, std::memory_order_relaxed);
    const uint64_t call = (call_.load(std::memory_order_relaxed) / kSeats + 1) * kSeats;
    call_.store(call + seats);
    wake_helpers(static_cast<int>(seats));
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
    Helper& self = helpers_[num_begun_.fetch_add(1)];
#if defined(__linux__)
    self.has_clock = pthread_getcpuclockid(pthread_self(), &self.clock) == 0;
#endif
    for (;;) {
      const auto is_open = [this] { return call_.load(std::memory_order_relaxed) % kSeats != 0; };
      if (!comes_true(is_open, kHelperPatience)) sleep_until_open();
      const int seat = take_seat();
      if (seat == 0) continue;
      self.is_in_body.store(true, std::memory_order_release);
      body_(data_, seat);
      self.is_in_body.store(false, std::memory_order_relaxed);
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
    waking_.wait(lock, [this] { return call_.load() % kSeats != 0; });
    sleeping_helpers_.fetch_sub(1);
  }

  // Where fewer are called than there are, as many may go on sleeping.
  void wake_helpers(int seats) {
    if (sleeping_helpers_.load() <= num_helpers_ - seats) return;
    { const std::lock_guard<std::mutex> lock(mutex_); }
    waking_.notify_all();
  }

  void wait_for(uint64_t helpers) {
    if (comes_true([&] { return finished_.load(std::memory_order_acquire) == helpers; }, kCallerPatience)) return;
    const Clock::time_point began = Clock::now();
    for (int i = 0; i < num_helpers_; ++i) helpers_[i].note_cpu_time();
    {
      std::unique_lock<std::mutex> lock(mutex_);
      caller_sleeps_.store(true);
      caller_.wait(lock, [&] { return finished_.load() == helpers; });
      caller_sleeps_.store(false);
    }
    const Clock::duration waited = Clock::now() - began;
    if (waited < kLateAfter) return;
    for (int i = 0; i < num_helpers_; ++i)
      if (helpers_[i].has_lost_core(waited)) return rest_.note_loss(num_helpers_, Clock::now());
  }

  // What the caller knows of a helper. has_clock: of its processor time. is_watched, before: whether the caller waits for
  // it, and the helper's processor time when it began to.
  struct Helper {
    std::atomic<bool> is_in_body{false};
    clockid_t clock{};
    bool has_clock = false;
    bool is_watched = false;
    std::chrono::nanoseconds before{};

    void note_cpu_time() {
      is_watched = is_in_body.load(std::memory_order_acquire) && has_clock;
      if (is_watched) before = cpu_time(clock);
    }

    bool has_lost_core(Clock::duration waited) const { return is_watched && 2 * (cpu_time(clock) - before) < waited; }
  };

  // In lines of their own: what callers write, what they write for helpers that poll it, what these answer.
  alignas(kLineBytes) std::atomic<bool> busy_{false};
  int num_helpers_ = 0;  // this and the next two: only of who is busy
  bool is_refused_ = false;
  HelperRest rest_;
  alignas(kLineBytes) std::atomic<uint64_t> call_{0};  // the call's number x kSeats + its free seats
  void (*body_)(void*, int) = nullptr;
  void* data_ = nullptr;
  alignas(kLineBytes) std::atomic<uint64_t> finished_{0};
  alignas(kLineBytes) std::atomic<int> sleeping_helpers_{0};
  std::atomic<bool> caller_sleeps_{false};
  std::mutex mutex_;
  std::condition_variable waking_, caller_;
  std::atomic<int> num_begun_{0};
  Helper helpers_[kMostHelpers];
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
