// Shared memory as the asynchronous units see it, and the addresses that they take.
#pragma once

#include <vector>

#include "machine.hpp"

namespace kvplan_host {

constexpr uint32_t SHARED_BEGIN = 1024 + 128;  // of dynamic shared memory, in its own address space

// Of the running block: NaN until something is copied into it or fenced.
std::vector<unsigned char>& async_memory();

// Where 16 bytes at `address` lie when 8 rows of 128 bytes are swizzled.
inline uint32_t swizzled(uint32_t address) { return address ^ (address >> 7 & 7) << 4; }

}  // namespace kvplan_host
