// Runs a kernel's own source on the CPU: every CUDA thread is a fibre, barriers and warp operations are meeting points.
//
// What it proves: arithmetic, indexing, and synchronisation. Blocks run one after the other; the threads of a block run
// until their next meeting point, in an order the caller chooses (forward, backward, shuffled), so that a missing
// barrier gives another result. Dynamic shared memory starts as NaN, and copies begun by cp.async land only at the wait
// that completes them. A barrier that not all threads reach, a warp operation that lanes disagree on, a misaligned
// vector access: each ends the launch with a message instead of a hang.
//
// The machine itself is emulation.cpp, compiled once; this header is all that a kernel's compilation reads.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace kvplan_host {

constexpr int WARP_SIZE = 32;
constexpr int SLOT_BYTES = 64;

struct Index3 {
    unsigned x, y, z;
};

// Where the lanes of a warp put what they bring to an operation, and find what they take from it.
struct Slots {
    alignas(16) unsigned char bytes[WARP_SIZE][SLOT_BYTES];
};

// Ends the launch with a message.
[[noreturn]] void fail(const char* message);

Index3 thread_index();
Index3 block_index();
Index3 block_size();
Index3 grid_size();
int lane_index();
unsigned char* dynamic_shared();

void block_barrier();

// Of a thread that waits for what another process writes: the others of its block, and other processes, go on first.
void let_others_write();

// All 32 lanes bring `bytes` bytes; the last one runs `complete` over all slots; each takes its own slot back.
void warp_meet(void* data, size_t bytes, void (*complete)(Slots&));

// Copies to shared memory that complete at a wait. bytes is 16, or 0 to fill 16 bytes with zeros.
void begin_copy(void* target, const void* source, unsigned bytes);
void commit_copies();
void wait_copies(size_t groups_left);

// Launches body(params) over the grid. Returns 0, or 1 with a message in `error` (at least 256 bytes).
int launch(void (*body)(const void*), const unsigned* grid, const unsigned* block, size_t shared_bytes,
           const void* params, int order, char* error);

template <typename T>
T* slot(Slots& slots, int lane) {
    static_assert(sizeof(T) <= SLOT_BYTES, "a slot holds SLOT_BYTES");
    return reinterpret_cast<T*>(slots.bytes[lane]);
}

}  // namespace kvplan_host
