// Barriers in shared memory, barriers of some threads, copies of boxes, and what the asynchronous units see.
#include <algorithm>
#include <cstring>
#include <deque>
#include <map>

#include "async_memory.hpp"
#include "hopper.hpp"

namespace kvplan_host {

namespace {

struct Barrier {
    int arrivals = 0;
    int missing = 0;
    int64_t missing_bytes = 0;
    unsigned phase = 0;
    int waiting = 0;  // threads
    unsigned first_user = 0;  // the thread that made it
    unsigned made_after = 0;  // how many __syncthreads came before
    Meeting meeting;
};

struct BoxCopy {
    unsigned char* target;
    HostTensorMap map;
    int begin[HostTensorMap::RANK];
    Barrier* barrier;
};

struct NamedBarrier {
    int threads = 0;
    std::vector<char> took_part;
    bool all_fenced = true;  // when they came
    Meeting meeting;
};

struct Units {
    unsigned serial = 0;
    std::vector<unsigned char> memory;
    std::vector<char> has_fenced;
    std::map<void*, Barrier> barriers;
    std::map<int, NamedBarrier> named;
    std::deque<BoxCopy> copies;
};

Units all_units;

// Those of the running block.
Units& units() {
    Units& own = all_units;
    if (own.serial != block_serial()) {
        own = Units{};
        own.serial = block_serial();
        own.memory.assign(shared_bytes(), 0xFF);
        own.has_fenced.assign(num_threads(), 0);
    }
    return own;
}

bool is_in_use() { return all_units.serial == block_serial(); }

Barrier& barrier_at(void* address) {
    const auto found = units().barriers.find(address);
    if (found == units().barriers.end()) fail("an mbarrier is used that nobody has made");
    Barrier& barrier = found->second;
    if (barrier.first_user != running_fibre().index && barrier.made_after == num_syncs())
        fail("an mbarrier is used before a __syncthreads has followed its init");
    return barrier;
}

void complete_if_due(Barrier& barrier) {
    if (barrier.missing > 0 || barrier.missing_bytes != 0) return;
    barrier.missing = barrier.arrivals;
    barrier.phase ^= 1;
    open(barrier.meeting);
}

uint64_t box_bytes(const HostTensorMap& map) {
    return map.strides[0] * map.box[0] * map.box[1] * map.box[2] * map.box[3];
}

void check_box(const BoxCopy& copy) {
    const HostTensorMap& map = copy.map;
    const uint32_t target = shared_address(copy.target);
    if (target % 128 || (map.is_swizzled && target % 1024)) fail("a box goes to an address that is not aligned for it");
    if (target - SHARED_BEGIN + box_bytes(map) > shared_bytes()) fail("a box ends behind shared memory");
    if (map.is_swizzled && map.strides[0] * map.box[0] != 128) fail("rows of a swizzled box are 128 bytes here");
    for (int i = 0; i < HostTensorMap::RANK; ++i) {
        const bool begins_inside = copy.begin[i] >= 0 && uint32_t(copy.begin[i]) < map.sizes[i];
        if (!begins_inside || copy.begin[i] + map.box[i] > map.sizes[i]) fail("a box lies outside of its tensor");
    }
}

void land(const BoxCopy& copy) {
    const HostTensorMap& map = copy.map;
    const size_t row_bytes = map.strides[0] * map.box[0];
    const uint32_t begin = shared_address(copy.target);
    uint32_t cell = begin;
    unsigned char* const memory = copy.target - begin;
    for (uint32_t w = 0; w < map.box[3]; ++w)
        for (uint32_t z = 0; z < map.box[2]; ++z)
            for (uint32_t y = 0; y < map.box[1]; ++y) {
                const unsigned char* row = map.address + copy.begin[0] * map.strides[0] +
                                           (copy.begin[1] + y) * map.strides[1] + (copy.begin[2] + z) * map.strides[2] +
                                           (copy.begin[3] + w) * map.strides[3];
                for (size_t i = 0; i < row_bytes; i += 16, cell += 16) {
                    const uint32_t place = map.is_swizzled ? swizzled(cell) : cell;
                    std::memcpy(memory + place, row + i, 16);
                    std::memcpy(async_memory().data() + (place - SHARED_BEGIN), row + i, 16);
                }
            }
    copy.barrier->missing_bytes -= int64_t(box_bytes(map));
    complete_if_due(*copy.barrier);
}

// All threads that met had fenced what they wrote.
void publish_shared() { std::memcpy(units().memory.data(), dynamic_shared(), shared_bytes()); }

}  // namespace

std::vector<unsigned char>& async_memory() { return units().memory; }

uint32_t shared_address(const void* pointer) {
    return uint32_t(static_cast<const unsigned char*>(pointer) - dynamic_shared()) + SHARED_BEGIN;
}

void init_barrier(void* address, int arrivals) {
    if (shared_address(address) % 8) fail("an mbarrier lies at an address that is no multiple of 8");
    Barrier barrier;
    barrier.arrivals = barrier.missing = arrivals;
    barrier.first_user = running_fibre().index;
    barrier.made_after = num_syncs();
    if (!units().barriers.emplace(address, barrier).second) fail("an mbarrier is made twice");
}

void arrive(void* address, int64_t expected_bytes) {
    Barrier& barrier = barrier_at(address);
    if (barrier.missing == 0) fail("more threads arrive at an mbarrier than it expects");
    barrier.missing_bytes += expected_bytes;
    if (barrier.missing_bytes >= 1 << 20) fail("an mbarrier counts up to 2^20 - 1 bytes");
    --barrier.missing;
    complete_if_due(barrier);
}

void wait_phase(void* address, unsigned parity) {
    Barrier& barrier = barrier_at(address);
    ++barrier.waiting;
    while (barrier.phase == parity) wait_for(barrier.meeting);
    --barrier.waiting;
}

void sync_some(int id, int threads) {
    const NamedBarrier& barrier = units().named[id];
    const unsigned generation = barrier.meeting.generation;
    arrive_some(id, threads);
    if (barrier.meeting.generation == generation) wait_for(barrier.meeting);
}

void arrive_some(int id, int threads) {
    if (id < 1 || id > 15 || threads % WARP_SIZE) fail("bar.sync takes barriers 1 to 15 and whole warps");
    NamedBarrier& barrier = units().named[id];
    if (barrier.meeting.arrived == 0) {
        barrier.threads = threads;
        barrier.took_part.assign(num_threads(), 0);
        barrier.all_fenced = true;
    }
    if (barrier.threads != threads) fail("threads disagree on how many a barrier has");
    const unsigned thread = running_fibre().index;
    if (barrier.took_part[thread]) fail("a thread arrives a second time at a barrier that waits for others");
    barrier.took_part[thread] = 1;
    barrier.all_fenced = barrier.all_fenced && units().has_fenced[thread];
    units().has_fenced[thread] = 0;
    if (++barrier.meeting.arrived < threads) return;
    if (barrier.all_fenced) publish_shared();
    open(barrier.meeting);
}

void copy_box(void* target, const void* map, const int (&begin)[HostTensorMap::RANK], void* barrier) {
    BoxCopy copy{static_cast<unsigned char*>(target), {}, {}, &barrier_at(barrier)};
    std::memcpy(&copy.map, map, sizeof(copy.map));
    std::copy_n(begin, HostTensorMap::RANK, copy.begin);
    check_box(copy);
    std::memset(target, 0xFF, box_bytes(copy.map));
    std::memset(async_memory().data() + (shared_address(target) - SHARED_BEGIN), 0xFF, box_bytes(copy.map));
    units().copies.push_back(copy);
}

void fence_async_proxy() { units().has_fenced[running_fibre().index] = 1; }

void threads_met(const std::vector<char>& took_part) {
    if (!is_in_use()) return;
    bool all_fenced = true;
    for (size_t i = 0; i < took_part.size(); ++i) {
        if (!took_part[i]) continue;
        all_fenced = all_fenced && units().has_fenced[i];
        units().has_fenced[i] = 0;
    }
    if (all_fenced) publish_shared();
}

bool land_copy(int order, bool is_idle) {
    if (!is_in_use() || (order == 1 && !is_idle)) return false;
    std::deque<BoxCopy>& copies = units().copies;
    auto chosen = copies.begin();
    if (order == 1) {
        chosen = std::find_if(chosen, copies.end(), [](const BoxCopy& copy) { return copy.barrier->waiting > 0; });
    } else if (order > 1 && !copies.empty()) {
        chosen += long(unsigned(order) * 7919u % copies.size());
    }
    if (chosen == copies.end()) return false;
    const BoxCopy copy = *chosen;
    copies.erase(chosen);
    land(copy);
    return true;
}

void check_block_end() {
    if (!is_in_use()) return;
    if (!units().copies.empty()) fail("a block ends while a box is being copied");
    for (const auto& [id, barrier] : units().named)
        if (barrier.meeting.arrived > 0) fail("a block ends while a barrier has arrivals that nobody waits for");
}

}  // namespace kvplan_host
