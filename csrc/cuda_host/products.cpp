// Products of warp groups: computed when all 128 threads have asked for them, seen when each has waited for them.
#include <cstring>
#include <map>
#include <memory>

#include "operands.hpp"

namespace kvplan_host {

namespace {

constexpr int GROUP_THREADS = 128;
constexpr float UNDER_WAY = 3.0e38f;  // what sums hold until the wait: what is computed with it shows

// One product of a warp group.
struct Task {
    GroupProduct first;     // as its first thread gave it
    uint64_t operands = 0;  // a hash of what it read of shared memory
    int waits = 0;          // of threads, until now
};

// What one thread has under way.
struct Pending {
    std::vector<float> result;
    size_t last_group = 0;  // that adds to it
};

struct UnderWay {
    std::shared_ptr<Task> task;
    size_t group;
    const uint32_t* registers;
    uint32_t values[4];
};

struct Thread {
    bool has_fenced = false;
    size_t num_groups = 0;  // committed
    std::map<float*, Pending> sums;
    std::vector<UnderWay> tasks;
    const GroupProduct* asked = nullptr;
};

struct Group {
    Meeting meeting;
    std::shared_ptr<Task> task;
};

struct Products {
    unsigned serial = 0;
    std::vector<Thread> threads;
    std::vector<Group> groups;
};

Products all_products;

Products& products() {
    Products& own = all_products;
    if (own.serial != block_serial()) {
        own = Products{};
        own.serial = block_serial();
        own.threads.resize(num_threads());
        own.groups.resize(num_threads() / GROUP_THREADS);
    }
    return own;
}

Thread& own_thread() { return products().threads[running_fibre().index]; }

bool agree(const GroupProduct& one, const GroupProduct& other) {
    return one.a_descriptor == other.a_descriptor && one.b_descriptor == other.b_descriptor &&
           one.b_is_column_major == other.b_is_column_major && one.columns == other.columns &&
           one.adds == other.adds && (one.a_registers == nullptr) == (other.a_registers == nullptr);
}

void check_untouched(const float* sums, int count) {
    for (int i = 0; i < count; ++i)
        if (sums[i] != UNDER_WAY) fail("sums are written while a product that adds to them is under way");
}

// The thread's sums before the product: those of products under way, or what it holds.
Pending& pending_sums(Thread& thread, const GroupProduct& product) {
    const int count = product.columns / 2;
    Pending& pending = thread.sums[product.sums];
    if (pending.result.empty()) {
        pending.result.assign(product.sums, product.sums + count);
    } else {
        check_untouched(product.sums, count);
    }
    if (int(pending.result.size()) != count) fail("products of two shapes add to the same sums");
    for (int i = 0; i < count; ++i) product.sums[i] = UNDER_WAY;
    pending.last_group = thread.num_groups;
    return pending;
}

void add_rows(Pending& pending, const float (&a)[ROWS][DEPTH], const std::vector<float>& b, int columns, bool adds,
              int thread) {
    const int first_row = thread / WARP_SIZE * 16 + thread % WARP_SIZE / 4, first_column = thread % 4 * 2;
    for (int i = 0; i < columns / 2; ++i) {
        const int row = first_row + i / 2 % 2 * 8, column = first_column + i / 4 * 8 + i % 2;
        float sum = adds ? pending.result[size_t(i)] : 0.0f;
        for (int k = 0; k < DEPTH; ++k) sum += a[row][k] * b[size_t(column * DEPTH + k)];
        pending.result[size_t(i)] = sum;
    }
}

// The product of all 128 threads that begin with `first`.
std::shared_ptr<Task> start_task(size_t first) {
    std::vector<Thread>& threads = products().threads;
    const GroupProduct& product = *threads[first].asked;
    const std::unique_ptr<Operands> read = read_operands(product);
    auto task = std::make_shared<Task>(Task{product, hash_of(*read), 0});
    for (int thread = 0; thread < GROUP_THREADS; ++thread) {
        const GroupProduct& own = *threads[first + size_t(thread)].asked;
        if (!agree(product, own)) fail("threads of a warp group disagree on a product");
        if (own.a_registers != nullptr) take_registers(*read, own.a_registers, thread);
    }
    float a[ROWS][DEPTH];
    for (int row = 0; row < ROWS; ++row)
        for (int k = 0; k < DEPTH; ++k) a[row][k] = product.to_float(read->a[row][k]);
    std::vector<float> b(size_t(product.columns * DEPTH));
    for (int n = 0; n < product.columns; ++n)
        for (int k = 0; k < DEPTH; ++k) b[size_t(n * DEPTH + k)] = product.to_float(read->b[k][n]);
    for (int thread = 0; thread < GROUP_THREADS; ++thread) {
        Thread& own = threads[first + size_t(thread)];
        add_rows(pending_sums(own, *own.asked), a, b, product.columns, product.adds, thread);
    }
    return task;
}

// A thread no longer waits for the product: its operands must be what they were.
void end_task(const UnderWay& one) {
    for (int i = 0; one.registers != nullptr && i < 4; ++i)
        if (one.registers[i] != one.values[i]) fail("registers change while a product reads them");
    if (++one.task->waits < GROUP_THREADS) return;
    if (hash_of(*read_operands(one.task->first)) != one.task->operands)
        fail("shared memory changes while a product reads it");
}

void deliver(float* sums, const Pending& pending) {
    check_untouched(sums, int(pending.result.size()));
    std::memcpy(sums, pending.result.data(), pending.result.size() * sizeof(float));
}

}  // namespace

void fence_registers() { own_thread().has_fenced = true; }

void multiply(const GroupProduct& product) {
    Thread& thread = own_thread();
    if (!thread.has_fenced) fail("wgmma.mma_async without a wgmma.fence since registers were last free");
    if (product.columns % 8 || product.columns > MOST_COLUMNS) fail("a product of columns that wgmma does not have");
    const size_t index = running_fibre().index, number = index / GROUP_THREADS;
    if (number >= products().groups.size()) fail("a product of threads that are no whole warp group");
    Group& group = products().groups[number];
    thread.asked = &product;
    if (++group.meeting.arrived == GROUP_THREADS) {
        group.task = start_task(number * GROUP_THREADS);
        open(group.meeting);
    } else {
        wait_for(group.meeting);
    }
    UnderWay one{group.task, thread.num_groups, product.a_registers, {}};
    if (one.registers != nullptr) std::memcpy(one.values, one.registers, sizeof(one.values));
    thread.tasks.push_back(one);
}

void commit_products() { ++own_thread().num_groups; }

void wait_products(size_t groups_left) {
    Thread& thread = own_thread();
    let_others_run(2 + int(7 * (running_fibre().index / WARP_SIZE) + thread.num_groups) % 5);  // warps drift apart
    thread.has_fenced = false;
    const size_t done = thread.num_groups - (groups_left < thread.num_groups ? groups_left : thread.num_groups);
    while (!thread.tasks.empty() && thread.tasks.front().group < done) {
        end_task(thread.tasks.front());
        thread.tasks.erase(thread.tasks.begin());
    }
    for (auto one = thread.sums.begin(); one != thread.sums.end();) {
        if (one->second.last_group >= done) {
            ++one;
            continue;
        }
        deliver(one->first, one->second);
        one = thread.sums.erase(one);
    }
}

void check_thread_end() {
    if (all_products.serial == block_serial() && !own_thread().tasks.empty())
        fail("a thread ends while its products are under way");
}

}  // namespace kvplan_host
