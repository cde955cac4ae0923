// Products of warp groups: computed when all 128 threads have asked for them, seen when each has waited for them.
#include <cstring>
#include <map>
#include <memory>

#include "async_memory.hpp"
#include "hopper.hpp"

namespace kvplan_host {

namespace {

constexpr int GROUP_THREADS = 128, ROWS = 64, DEPTH = 16, MOST_COLUMNS = 256;
constexpr float UNDER_WAY = 3.0e38f;  // what sums hold until the wait: what is computed with it shows

// The fields of a matrix descriptor.
struct Matrix {
    uint32_t begin, leading_bytes, stride_bytes;

    explicit Matrix(uint64_t descriptor)
        : begin(uint32_t(descriptor & 0x3FFF) << 4),
          leading_bytes(uint32_t(descriptor >> 16 & 0x3FFF) << 4),
          stride_bytes(uint32_t(descriptor >> 32 & 0x3FFF) << 4) {
        if (descriptor >> 62 != 1) fail("a matrix descriptor whose swizzling is not that of 128 bytes");
        if (descriptor >> 49 & 7) fail("a matrix descriptor with a base offset");
    }

    // Of one 16-bit element. `major` counts along 128 bytes of memory, `minor` from one such row to the next: the depth
    // is major in an ordinary matrix, whose 16 elements never leave those 128 bytes.
    uint16_t at(uint32_t major, uint32_t minor) const {
        const uint32_t row = minor % 8 * 128 + minor / 8 * stride_bytes;
        const uint32_t address = swizzled(begin + row + major / 64 * leading_bytes + major % 64 * 2) - SHARED_BEGIN;
        const std::vector<unsigned char>& memory = async_memory();
        if (address + 2 > memory.size()) fail("a matrix descriptor leads out of shared memory");
        uint16_t bits;
        std::memcpy(&bits, &memory[address], 2);
        return bits;
    }
};

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

thread_local Products all_products;

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

struct Operands {
    uint16_t a[ROWS][DEPTH], b[DEPTH][MOST_COLUMNS];
};

// What the product reads of shared memory, and zeros.
std::unique_ptr<Operands> read_operands(const GroupProduct& product) {
    auto read = std::make_unique<Operands>();
    std::memset(read.get(), 0, sizeof(Operands));
    const Matrix b(product.b_descriptor);
    if (product.b_is_column_major) {
        for (int k = 0; k < DEPTH; ++k)
            for (int n = 0; n < product.columns; ++n) read->b[k][n] = b.at(uint32_t(n), uint32_t(k));
    } else {
        for (int n = 0; n < product.columns; ++n)
            for (int k = 0; k < DEPTH; ++k) read->b[k][n] = b.at(uint32_t(k), uint32_t(n));
    }
    if (product.a_registers != nullptr) return read;
    const Matrix a(product.a_descriptor);
    for (int row = 0; row < ROWS; ++row)
        for (int k = 0; k < DEPTH; ++k) read->a[row][k] = a.at(uint32_t(k), uint32_t(row));
    return read;
}

uint64_t hash_of(const Operands& operands) {
    uint64_t hash = 1469598103934665603u, words[sizeof(Operands) / 8];
    std::memcpy(words, &operands, sizeof(Operands));
    for (const uint64_t word : words) hash = (hash ^ word) * 1099511628211u;
    return hash;
}

void take_registers(Operands& operands, const uint32_t* registers, int thread) {
    const int row = thread / WARP_SIZE * 16 + thread % WARP_SIZE / 4, column = thread % 4 * 2;
    for (int i = 0; i < 4; ++i)
        for (int e = 0; e < 2; ++e)
            operands.a[row + i % 2 * 8][column + i / 2 * 8 + e] = uint16_t(registers[i] >> 16 * e);
}

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
