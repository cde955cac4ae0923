// The machine behind emulation.hpp: fibres, meetings, pending copies, and the scheduler that runs a grid.
#include "machine.hpp"

#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace kvplan_host {

namespace {

struct Warp {
    Meeting meeting;
    int alive = 0;
    void (*operation)(Slots&) = nullptr;  // which operation the lanes are meeting in
    Slots slots;
};

struct Machine {
    Index3 grid{}, block{}, block_index{};
    std::vector<Fibre> fibres;
    std::vector<Warp> warps;
    std::vector<std::unique_ptr<unsigned char[]>> stacks;
    std::vector<unsigned char> shared;
    Meeting barrier, pass;
    unsigned serial = 0;  // of the block
    size_t shared_bytes = 0;
    int alive = 0;
    Fibre* running = nullptr;
    Context scheduler{};
    std::string error;
    void (*body)(const void*) = nullptr;
    const void* params = nullptr;
};

// One for the process, and not one for each thread: to find a thread's own took half of a launch.
Machine machine;
std::mutex one_launch_at_a_time;

Warp& own_warp() { return machine.warps[machine.running->index / WARP_SIZE]; }

// All that are left have reached __syncthreads.
void open_barrier() {
    std::vector<char> took_part;
    for (const Fibre& fibre : machine.fibres) took_part.push_back(!fibre.finished);
    threads_met(took_part);
    open(machine.barrier);
}

// ---- the scheduler ---------------------------------------------------------------------------------------------

void fibre_main() {
    Fibre* fibre = machine.running;
    try {
        machine.body(machine.params);
        check_thread_end();
    } catch (const std::exception& error) {
        if (machine.error.empty()) machine.error = error.what();
    }
    fibre->finished = true;
    --machine.warps[fibre->index / WARP_SIZE].alive;
    --machine.alive;
    if (machine.alive > 0 && machine.barrier.arrived == machine.alive) open_barrier();
    resume(fibre->context, machine.scheduler);
}

void start_block(size_t shared_bytes) {
    const size_t threads = machine.block.x;
    machine.shared.assign(shared_bytes + 256, 0xFF);
    machine.shared_bytes = shared_bytes;
    ++machine.serial;
    machine.barrier = {};
    machine.alive = int(threads);
    machine.warps.assign((threads + WARP_SIZE - 1) / WARP_SIZE, Warp{});
    machine.fibres.resize(threads);
    while (machine.stacks.size() < threads) machine.stacks.emplace_back(new unsigned char[FIBRE_STACK_BYTES]);
    for (size_t i = 0; i < threads; ++i) {
        Fibre& fibre = machine.fibres[i];
        fibre.index = unsigned(i);
        fibre.finished = false;
        fibre.waited_generation = nullptr;
        fibre.copies.clear();
        fibre.group_ends.clear();
        prepare_context(fibre.context, machine.stacks[i].get(), fibre_main);
        ++machine.warps[i / WARP_SIZE].alive;
    }
}

bool can_run(const Fibre& fibre) {
    if (fibre.finished) return false;
    return fibre.waited_generation == nullptr || *fibre.waited_generation != fibre.seen_generation;
}

// The order of a pass over the block's threads: 0 forward, 1 backward, else a multiplicative shuffle of that seed.
size_t nth_thread(size_t n, size_t threads, int order) {
    if (order == 0) return n;
    if (order == 1) return threads - 1 - n;
    size_t stride = (2654435761u * unsigned(order)) % threads | 1;
    while (std::gcd(stride, threads) != 1) stride += 2;
    return (n * stride + unsigned(order)) % threads;
}

void run_block(int order) {
    const size_t threads = machine.fibres.size();
    while (machine.alive > 0) {
        bool progressed = false;
        for (size_t n = 0; n < threads; ++n) {
            Fibre& fibre = machine.fibres[nth_thread(n, threads, order)];
            const bool wind_down = !machine.error.empty() && !fibre.finished && fibre.waited_generation != nullptr;
            if (!can_run(fibre) && !wind_down) continue;
            machine.running = &fibre;
            fibre.waited_generation = nullptr;
            resume(machine.scheduler, fibre.context);
            progressed = true;
        }
        open(machine.pass);
        progressed = land_copy(order, !progressed) || progressed;
        if (!progressed && machine.error.empty())
            machine.error = "threads wait at a barrier that the others never reach";
    }
    try {
        if (machine.error.empty()) check_block_end();
    } catch (const std::exception& error) {
        machine.error = error.what();
    }
}

}  // namespace

Fibre& running_fibre() { return *machine.running; }
size_t num_threads() { return machine.fibres.size(); }
unsigned block_serial() { return machine.serial; }
unsigned num_syncs() { return machine.barrier.generation; }
size_t shared_bytes() { return machine.shared_bytes; }

void wait_for(const Meeting& meeting) {
    Fibre* fibre = machine.running;
    fibre->waited_generation = &meeting.generation;
    fibre->seen_generation = meeting.generation;
    resume(fibre->context, machine.scheduler);
    if (!machine.error.empty()) fail("another thread of the block failed");
}

void let_others_run(int passes) {
    for (int i = 0; i < passes; ++i) wait_for(machine.pass);
}

void let_others_write() {
    std::this_thread::yield();
    let_others_run(1);
}

void open(Meeting& meeting) {
    meeting.arrived = 0;
    ++meeting.generation;
}

[[noreturn]] void fail(const char* message) { throw std::runtime_error(message); }

Index3 thread_index() { return {machine.running->index, 0, 0}; }  // kernels here use one-dimensional blocks
Index3 block_index() { return machine.block_index; }
Index3 block_size() { return machine.block; }
Index3 grid_size() { return machine.grid; }
int lane_index() { return int(machine.running->index % WARP_SIZE); }

unsigned char* dynamic_shared() {
    auto address = reinterpret_cast<uintptr_t>(machine.shared.data());
    return reinterpret_cast<unsigned char*>((address + 127) & ~uintptr_t(127));
}

void block_barrier() {
    if (++machine.barrier.arrived == machine.alive) {
        open_barrier();
    } else {
        wait_for(machine.barrier);
    }
}

void warp_meet(void* data, size_t bytes, void (*complete)(Slots&)) {
    Warp& warp = own_warp();
    if (warp.alive != WARP_SIZE) fail("a warp operation ran after a lane of its warp had ended");
    if (warp.meeting.arrived > 0 && warp.operation != complete) fail("lanes of a warp disagree on the operation");
    warp.operation = complete;
    unsigned char* own = warp.slots.bytes[lane_index()];
    std::memcpy(own, data, bytes);
    if (++warp.meeting.arrived == WARP_SIZE) {
        complete(warp.slots);
        open(warp.meeting);
    } else {
        wait_for(warp.meeting);
    }
    std::memcpy(data, own, bytes);
}

void begin_copy(void* target, const void* source, unsigned bytes) {
    if (reinterpret_cast<uintptr_t>(target) % 16 || (bytes && reinterpret_cast<uintptr_t>(source) % 16)) {
        fail("cp.async of 16 bytes at an address that is no multiple of 16");
    }
    machine.running->copies.push_back({target, source, bytes});
}

void commit_copies() { machine.running->group_ends.push_back(machine.running->copies.size()); }

void wait_copies(size_t groups_left) {
    Fibre& fibre = *machine.running;
    if (fibre.group_ends.size() <= groups_left) return;
    const size_t groups = fibre.group_ends.size() - groups_left, end = fibre.group_ends[groups - 1];
    for (size_t i = 0; i < end; ++i) {
        const PendingCopy& copy = fibre.copies[i];
        std::memset(copy.target, 0, 16);
        std::memcpy(copy.target, copy.source, copy.bytes);
    }
    fibre.copies.erase(fibre.copies.begin(), fibre.copies.begin() + long(end));
    fibre.group_ends.erase(fibre.group_ends.begin(), fibre.group_ends.begin() + long(groups));
    for (size_t& group_end : fibre.group_ends) group_end -= end;
}

int launch(void (*body)(const void*), const unsigned* grid, const unsigned* block, size_t shared_bytes,
           const void* params, int order, char* error) {
    const std::lock_guard<std::mutex> alone(one_launch_at_a_time);
    machine.grid = {grid[0], grid[1], grid[2]};
    machine.block = {block[0], block[1], block[2]};
    machine.body = body;
    machine.params = params;
    machine.error = block[1] == 1 && block[2] == 1 && block[0] % WARP_SIZE == 0 ? "" : "blocks are whole warps in x";
    const size_t blocks = size_t(grid[0]) * grid[1] * grid[2];
    for (size_t i = 0; i < blocks && machine.error.empty(); ++i) {
        const size_t number = order == 1 ? blocks - 1 - i : i;
        machine.block_index = {unsigned(number % grid[0]), unsigned(number / grid[0] % grid[1]),
                               unsigned(number / grid[0] / grid[1])};
        start_block(shared_bytes);
        run_block(order);
    }
    if (machine.error.empty()) return 0;
    std::snprintf(error, 256, "block (%u, %u, %u): %s", machine.block_index.x, machine.block_index.y,
                  machine.block_index.z, machine.error.c_str());
    return 1;
}

}  // namespace kvplan_host
