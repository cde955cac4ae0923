// The PTX of compute capability 9.0 (sm_90a), each instruction in a function of a few lines with a host twin: barriers in
// shared memory, copies of boxes of a tensor, registers that warp groups give each other. Their products: warp_group.cuh.
//
// Shared memory has two readers. Threads and cp.async write by the ordinary way; boxes land, and products read, by the
// asynchronous one, to which an ordinary write is known only after fence_async_proxy() and a barrier.
//
// Sources: PTX ISA, "mbarrier", "cp.async.bulk.tensor", "setmaxnreg".
#pragma once

#include "tensor_core.cuh"

#if defined(KVPLAN_HOST)
#include "../cuda_host/hopper.hpp"
#endif

constexpr int GROUP_THREADS = 128;
constexpr int PANEL_ROW_BYTES = 128;   // a row of a swizzled panel: 64 elements of 16 bits
constexpr int PANEL_ALIGNMENT = 1024;  // eight such rows, after which the swizzling repeats

// 128 bytes that the driver makes (cuTensorMapEncodeTiled): where a tensor lies, and which box of it is copied at once.
struct alignas(64) TensorMap {
    u64 words[16];
};

// Where 16 bytes lie that belong at `place` of a panel: their number in the row, exclusive-or the row's.
KVPLAN_INLINE constexpr int swizzled_place(int place) { return place ^ (place >> 7 & 7) << 4; }

#if defined(KVPLAN_HOST)

KVPLAN_INLINE u32 shared_address(const void* pointer) { return kvplan_host::shared_address(pointer); }
KVPLAN_INLINE void init_barrier(u64* barrier, int arrivals) { kvplan_host::init_barrier(barrier, arrivals); }
KVPLAN_INLINE void fence_barrier_init() {}
KVPLAN_INLINE void arrive(u64* barrier) { kvplan_host::arrive(barrier, 0); }
KVPLAN_INLINE void arrive_expecting(u64* barrier, u32 bytes) { kvplan_host::arrive(barrier, bytes); }
KVPLAN_INLINE void wait_phase(u64* barrier, u32 parity) { kvplan_host::wait_phase(barrier, parity); }
KVPLAN_INLINE void sync_some(int id, int threads) { kvplan_host::sync_some(id, threads); }
KVPLAN_INLINE void arrive_some(int id, int threads) { kvplan_host::arrive_some(id, threads); }
KVPLAN_INLINE void fence_async_proxy() { kvplan_host::fence_async_proxy(); }
KVPLAN_INLINE void prefetch_map(const TensorMap&) {}

KVPLAN_INLINE void copy_box(u8* target, const TensorMap& map, int x, int y, int z, int w, u64* barrier) {
    const int begin[4] = {x, y, z, w};
    kvplan_host::copy_box(target, &map, begin, barrier);
}

template <int COUNT>
KVPLAN_INLINE void take_registers() {
    kvplan_host::limit_registers(COUNT);
}

template <int COUNT>
KVPLAN_INLINE void give_registers() {
    kvplan_host::limit_registers(COUNT);
}

#else

// ---- barriers in shared memory: `arrivals` threads and as many bytes as they said they expect complete a phase

KVPLAN_INLINE void init_barrier(u64* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

// Makes initialised barriers known to the asynchronous units; a __syncthreads must follow.
KVPLAN_INLINE void fence_barrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

KVPLAN_INLINE void arrive(u64* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

KVPLAN_INLINE void arrive_expecting(u64* barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

// Returns once the phase of that parity is complete: that of a barrier that has completed none is 1.
KVPLAN_INLINE void wait_phase(u64* barrier, u32 parity) {
    u32 is_complete;
    do {
        asm volatile(
            "{ .reg .pred done; mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2; selp.u32 %0, 1, 0, done; }"
            : "=r"(is_complete)
            : "r"(shared_address(barrier)), "r"(parity)
            : "memory");
    } while (is_complete == 0);
}

// A barrier of `threads` of the block's threads; barrier 0 is __syncthreads.
KVPLAN_INLINE void sync_some(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Counts towards that barrier without waiting for it.
KVPLAN_INLINE void arrive_some(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// ---- copies of boxes

// What this thread has written to shared memory becomes known to boxes and products, behind the next barrier.
KVPLAN_INLINE void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

KVPLAN_INLINE void prefetch_map(const TensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Begins the copy of the box from (x, y, z, w) on, innermost first; its bytes count towards the barrier's phase.
KVPLAN_INLINE void copy_box(u8* target, const TensorMap& map, int x, int y, int z, int w, u64* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
        "[%6];" ::"r"(shared_address(target)),
        "l"(&map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(shared_address(barrier))
        : "memory");
}

// ---- registers

// COUNT registers a thread from here on, for all four warps of a group: more, once others have given them, or fewer.
template <int COUNT>
KVPLAN_INLINE void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <int COUNT>
KVPLAN_INLINE void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

#endif
