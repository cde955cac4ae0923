// What compute capability 9.0 has beyond warps: barriers in shared memory that count bytes, copies of boxes of a tensor,
// and products of warp groups that run on their own.
//
// Each is as late, or as early, as the hardware may be. A copy fills its target with NaN when it begins and lands when
// the scheduler says so, in an order that the caller chooses. Products read what the asynchronous units see of shared
// memory: copied boxes, and what threads wrote before a fence and a barrier. Their sums hold no meaning until the
// wait that completes their group, which fails if operands in shared memory, registers or sums have changed since.
#pragma once

#include "emulation.hpp"

namespace kvplan_host {

// What the emulation's tensor maps hold instead of the driver's 128 opaque bytes. Innermost dimension first.
struct HostTensorMap {
    static constexpr int RANK = 4;
    const unsigned char* address;
    uint64_t strides[RANK];  // bytes from one element to the next; strides[0] is an element's size
    uint32_t sizes[RANK];
    uint32_t box[RANK];
    uint32_t is_swizzled;  // 16-byte pieces exchanged within 8 rows of 128 bytes
    uint32_t unused;
};

// The address of a byte of dynamic shared memory, as instructions and descriptors have it. It begins at an odd
// multiple of 128 bytes, so that who needs more must round up.
uint32_t shared_address(const void* pointer);

// ---- barriers in shared memory (mbarrier)

void init_barrier(void* barrier, int arrivals);
void arrive(void* barrier, int64_t expected_bytes);
void wait_phase(void* barrier, unsigned parity);

// ---- barriers of some of a block's threads (bar.sync, bar.arrive)

void sync_some(int id, int threads);
void arrive_some(int id, int threads);  // without waiting for the others

// ---- copies of boxes (cp.async.bulk.tensor), and what orders them behind ordinary writes (fence.proxy.async)

void copy_box(void* target, const void* map, const int (&begin)[HostTensorMap::RANK], void* barrier);
void fence_async_proxy();

// ---- products of 128 threads (wgmma.mma_async)

// sums [64, columns] += A [64, 16] x B [16, columns] as one thread gives it; its part of the sums is `columns` / 2
// floats. a_registers: its part of A, or null for one that a_descriptor says where to find.
struct GroupProduct {
    const uint32_t* a_registers;
    uint64_t a_descriptor;
    uint64_t b_descriptor;
    bool b_is_column_major;  // neighbours in memory are neighbours in a row of B: "MN-major"
    int columns;
    bool adds;  // to the sums, instead of replacing them
    float* sums;
    float (*to_float)(uint16_t);
};

void fence_registers();
void multiply(const GroupProduct& product);
void commit_products();
void wait_products(size_t groups_left);

// ---- a multiprocessor's registers, divided anew among the warp groups of its one block (setmaxnreg)

// `count` registers for the running thread from here on; waits until there are as many.
void limit_registers(int count);

}  // namespace kvplan_host
