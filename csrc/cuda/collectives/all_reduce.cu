// Every rank's values become the sum of all ranks', to the same bits on each ("one-shot" all-reduce): for messages so small
// that what counts is how long the first byte takes. Each rank shares one piece of memory with the others. It copies its
// values there, says so to the others, waits until they have said so, and adds what all of them have in the order of the
// ranks. So a call is one launch, one write of a signal to each peer and one read from each.
//
//     shared memory of a rank     values   [MOST_BLOCKS, 2, THREADS]      16 bytes each
//                                 signals  [MOST_BLOCKS, MOST_RANKS] u32  that rank's last call whose values are there
//                                 calls    [MOST_BLOCKS] u32              so far; the rank's own
//
// Blocks of one number belong together, whatever else their grids have: values, signals and count are of a block. Calls
// are counted in memory, because a captured launch has the same arguments in every replay. Blocks that wait for their peers
// must keep no others from beginning: 64 of 512 threads are on a device of 32 multiprocessors at once, whatever the order.
//
// Two halves of a block's values take turns, so nobody waits a second time. A half is filled again by the call after next.
// That one begins when the next one has ended here, for which every peer had signalled; and a peer signals when the call
// before has ended there, and with it the reading of this half. Compare vLLM's csrc/custom_all_reduce.cuh, whose one-shot
// kernel reads where the values lie, and so waits again before it ends.
#include "../reduce.cuh"

using Scalar = KVPLAN_SCALAR;
constexpr int RANKS = KVPLAN_RANKS;
constexpr int THREADS = 512;
constexpr int MOST_BLOCKS = 64;
constexpr int MOST_RANKS = 8;
constexpr int HALF_BYTES = THREADS * 16;
constexpr int SIGNALS_START = MOST_BLOCKS * 2 * HALF_BYTES;
constexpr int CALLS_START = SIGNALS_START + MOST_BLOCKS * MOST_RANKS * 4;
constexpr int TURNS_BETWEEN_LOOKS = 64;  // at `given_up`, which lies behind the bus

struct AllReduceParams {
    // [vectors]  16 bytes of Scalar each; the sums replace them
    void* x;
    // one u32 in the host's memory: other than 0 when the ranks wait for one that is lost
    const u32* given_up;
    // [RANKS]  addresses of the ranks' shared memory, as this one sees them
    u64 shared[MOST_RANKS];
    int vectors;
    int rank;
};

KVPLAN_INLINE u8* shared_of(const AllReduceParams& params, int rank) { return reinterpret_cast<u8*>(params.shared[rank]); }

KVPLAN_INLINE u32* signal_of(const AllReduceParams& params, int to, int from) {
    return reinterpret_cast<u32*>(shared_of(params, to) + SIGNALS_START) + int(blockIdx.x) * MOST_RANKS + from;
}

// This thread's 16 bytes of a call, in the shared memory of `rank`.
KVPLAN_INLINE Scalar* half_of(const AllReduceParams& params, int rank, u32 call) {
    const int half = int(blockIdx.x) * 2 + int(call % 2);
    return reinterpret_cast<Scalar*>(shared_of(params, rank) + half * HALF_BYTES + int(threadIdx.x) * 16);
}

// Whoever reads this signal sees all that its block wrote before the last barrier.
KVPLAN_INLINE void send_signal(u32* signal, u32 call) {
#if defined(KVPLAN_HOST)
    __atomic_store_n(signal, call, __ATOMIC_RELEASE);
#else
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(signal)), "r"(call) : "memory");
#endif
}

KVPLAN_INLINE u32 read_signal(const u32* signal) {
#if defined(KVPLAN_HOST)
    kvplan_host::let_others_write();
    return __atomic_load_n(signal, __ATOMIC_ACQUIRE);
#else
    u32 call;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];"
                 : "=r"(call)
                 : "l"(__cvta_generic_to_global(signal))
                 : "memory");
    return call;
#endif
}

KVPLAN_INLINE bool is_set(const u32* word) { return *static_cast<const volatile u32*>(word) != 0; }

// Whether the peer's values are there; false if they never will be. It may be one call further already.
KVPLAN_INLINE bool wait_for_signal(const u32* signal, u32 call, const u32* given_up) {
    for (u32 turn = 1; int(read_signal(signal) - call) < 0; ++turn) {
        if (turn % TURNS_BETWEEN_LOOKS == 0 && is_set(given_up)) return false;
    }
    return true;
}

// grid ceil(vectors / THREADS), at most MOST_BLOCKS; block THREADS. All ranks call with as many vectors. (Lone, so that the
// compiler has registers for what all peers are asked for.)
KVPLAN_LONE_KERNEL(all_reduce, AllReduceParams, THREADS) {
    __shared__ int is_given_up;
    const int thread = int(threadIdx.x), place = int(blockIdx.x) * THREADS + thread;
    const bool has_values = place < params.vectors;
    constexpr int COUNT = Pack<Scalar>::SIZE;
    Scalar* own = static_cast<Scalar*>(params.x) + i64(place) * COUNT;
    u32* calls = reinterpret_cast<u32*>(shared_of(params, params.rank) + CALLS_START) + blockIdx.x;
    const u32 call = *calls + 1;
    if (thread == 0) is_given_up = 0;
    if (has_values) store_pack(half_of(params, params.rank, call), load_pack(own));
    __syncthreads();  // the values are there, and everybody knows the call's number
    if (thread == 0) *calls = call;
    if (thread < RANKS && thread != params.rank) {
        send_signal(signal_of(params, thread, params.rank), call);
        if (!wait_for_signal(signal_of(params, params.rank, thread), call, params.given_up)) is_given_up = 1;
    }
    __syncthreads();
    if (is_given_up != 0 || !has_values) return;  // a lost rank's memory is gone too
    Pack<Scalar> packs[RANKS];  // all asked for before any is used: one way to the peers and back
    KVPLAN_UNROLL
    for (int rank = 0; rank < RANKS; ++rank) packs[rank] = load_pack(half_of(params, rank, call));
    Elements<Scalar, COUNT> sum{};
    KVPLAN_UNROLL
    for (int i = 0; i < COUNT; ++i) {
        sum.values[i] = to_float(packs[0].elements[i]);
        KVPLAN_UNROLL
        for (int rank = 1; rank < RANKS; ++rank) sum.values[i] += to_float(packs[rank].elements[i]);
    }
    Elements<Scalar, COUNT>::store(own, sum);
}
