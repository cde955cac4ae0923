// The threads that the kernels share work over: the calling one and helpers of this library.
#pragma once

namespace kvplan {

// body(data, 0) on the calling thread, and body(data, its seat) on as many of up to `threads` - 1 helpers as come while it
// runs there, each with a seat of its own below `threads`; returns when all of them are through with it. So body must do
// all of the work on whichever threads come: a helper whose core is taken by another process is waited for only if it has
// begun. While another thread is in here, and inside body, the calling thread does the work alone.
void run_on_team(void (*body)(void*, int), void* data, int threads);

}  // namespace kvplan
