// What the parts of the emulation know of each other: the running fibre, meetings, shared memory. No kernel reads this.
#pragma once

#include <cstddef>
#include <vector>

#include "emulation.hpp"
#include "fibre.hpp"

namespace kvplan_host {

struct Meeting {
    unsigned generation = 0;
    int arrived = 0;
};

// The thread that runs, and how many its block has.
Fibre& running_fibre();
size_t num_threads();

// Gives the processor back until the meeting's generation moves on.
void wait_for(const Meeting& meeting);

// Gives the processor back until every other thread that can run has done so this often.
void let_others_run(int passes);

// Lets all go on that wait for it.
void open(Meeting& meeting);

// Grows with every block that starts, and with every __syncthreads that all threads of it have reached.
unsigned block_serial();
unsigned num_syncs();

size_t shared_bytes();

// What the asynchronous units (copies.cpp, products.cpp) are told, and asked for.

// The threads whose entry is not 0 have met at a barrier.
void threads_met(const std::vector<char>& took_part);

// Lets one begun copy land, or none. `order` as the launch's: forward they land soon, in the order in which they began;
// backward as late as may be, when no thread can run (`is_idle`) and one waits for it; else one or another.
bool land_copy(int order, bool is_idle);

// The running thread has returned; the block has. Each fails where something is still on its way.
void check_thread_end();
void check_block_end();

}  // namespace kvplan_host
