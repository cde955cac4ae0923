// Scratch memory that is kept from call to call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace kvplan {

// One growing buffer, cut into 64-byte aligned pieces. Usage: measure with a null arena, reserve, cut again.
class Arena {
 public:
  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena() { std::free(base_); }

  // Room for `bytes`; false when there is no memory. Everything cut before is gone.
  bool reserve(size_t bytes) {
    if (bytes <= capacity_) return true;
    std::free(base_);
    base_ = nullptr;
    capacity_ = 0;
    const size_t wanted = (bytes + bytes / 4 + 4095) / 4096 * 4096;
    void* fresh = nullptr;
    if (posix_memalign(&fresh, 64, wanted) != 0) return false;
    std::memset(fresh, 0, wanted);
    base_ = static_cast<char*>(fresh);
    capacity_ = wanted;
    return true;
  }

  char* base() const { return base_; }

 private:
  char* base_ = nullptr;
  size_t capacity_ = 0;
};

// Hands out pieces of a buffer in order; with a null base it only adds their sizes up.
class Cutter {
 public:
  explicit Cutter(char* base) : base_(base) {}

  template <class T>
  T* take(int64_t count) {
    char* piece = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (sizeof(T) * static_cast<size_t>(count) + 63) / 64 * 64;
    return reinterpret_cast<T*>(piece);
  }

  size_t used() const { return used_; }

 private:
  char* base_;
  size_t used_ = 0;
};

}  // namespace kvplan
