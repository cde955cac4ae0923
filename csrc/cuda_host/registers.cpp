// The registers of a multiprocessor, which its block's warp groups give and take.
#include <vector>

#include "hopper.hpp"
#include "machine.hpp"

namespace kvplan_host {

namespace {

constexpr int REGISTERS = 64 * 1024, STEP = 8, FEWEST = 24, MOST = 256, GROUP_THREADS = 128;

struct Registers {
    unsigned serial = 0;
    int taken = 0;
    int most = 0;  // what the block was launched with
    std::vector<int> of_thread;
    std::vector<int> of_group;  // what its threads ask for; 0: nothing yet
    Meeting given;
};

Registers all_registers;

// Those of the running block, which begins with as many a thread as there are.
Registers& registers() {
    Registers& own = all_registers;
    if (own.serial != block_serial()) {
        const int threads = int(num_threads()), each = REGISTERS / threads / STEP * STEP;
        own = Registers{block_serial(), each * threads, each * threads, {}, {}, {}};
        own.of_thread.assign(size_t(threads), each);
        own.of_group.assign(size_t(threads / GROUP_THREADS), 0);
    }
    return own;
}

}  // namespace

void limit_registers(int count) {
    if (count % STEP || count < FEWEST || count > MOST) fail("setmaxnreg takes multiples of 8 from 24 to 256");
    Registers& own = registers();
    const size_t thread = running_fibre().index, group = thread / GROUP_THREADS;
    if (group >= own.of_group.size()) fail("setmaxnreg is for whole warp groups");
    if (own.of_group[group] != 0 && own.of_group[group] != count) fail("warps of a group want different registers");
    own.of_group[group] = count;
    while (own.taken + count - own.of_thread[thread] > own.most) wait_for(own.given);
    own.taken += count - own.of_thread[thread];
    own.of_thread[thread] = count;
    open(own.given);
}

}  // namespace kvplan_host
