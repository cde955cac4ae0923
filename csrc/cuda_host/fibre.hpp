// A fibre: one emulated CUDA thread with a stack of its own, switched to and from by hand.
//
// On x86-64 a switch saves the six callee-saved registers and exchanges stack pointers (a few nanoseconds; ucontext
// would make two system calls). Other machines take ucontext.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace kvplan_host {

constexpr size_t FIBRE_STACK_BYTES = 64 * 1024;

#if defined(__x86_64__)

// Saves the running context at *from and resumes the one stored at `to`.
__attribute__((naked, noinline)) static void switch_context(void** /*from: rdi*/, void* /*to: rsi*/) {
    asm volatile(
        "push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
        "mov %rsp, (%rdi)\n mov %rsi, %rsp\n"
        "pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret\n");
}

using Context = void*;

inline void prepare_context(Context& context, unsigned char* stack, void (*entry)()) {
    auto top = reinterpret_cast<uintptr_t>(stack + FIBRE_STACK_BYTES) & ~uintptr_t(15);
    auto* frame = reinterpret_cast<void**>(top) - 2;  // the entry must find its stack 8 bytes off 16, as after a call
    frame[0] = reinterpret_cast<void*>(entry);
    frame[1] = nullptr;
    context = frame - 6;  // six registers that nobody reads
}

inline void resume(Context& from, Context& to) { switch_context(&from, to); }

#else

using Context = ucontext_t;

inline void prepare_context(Context& context, unsigned char* stack, void (*entry)()) {
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = FIBRE_STACK_BYTES;
    context.uc_link = nullptr;
    makecontext(&context, entry, 0);
}

inline void resume(Context& from, Context& to) { swapcontext(&from, &to); }

#endif

// One copy that cp.async has begun and no wait has completed.
struct PendingCopy {
    void* target;
    const void* source;
    unsigned bytes;  // 0: fill the 16 bytes with zeros
};

struct Fibre {
    Context context{};
    unsigned index = 0;  // the thread's number in its block
    bool finished = false;
    const unsigned* waited_generation = nullptr;  // what must differ from seen_generation before the fibre can go on
    unsigned seen_generation = 0;
    std::vector<PendingCopy> copies;   // begun, in order
    std::vector<size_t> group_ends;    // commit points in `copies`
};

}  // namespace kvplan_host
