// ckpt/c/holdfast_ckpt.h: the checkpoint layer for programs that are not C++.
//
//   new -> item, buffer ... -> open -> load -> { step; begin_save; step
//   (before_write ...); poll_save } -> close -> free
//
// Each rank says which items the job has as far as it knows, and which boxes of
// them lie where in its memory. Opening gathers that from all ranks; what
// several ranks hold alike, the lowest of them stores. A checkpoint loads on
// any number of ranks and any other cut.
//
// Calls. Every function that can fail returns a code (HF_CKPT_OK is 0), and
// hf_ckpt_last_error() says in words what was done, to what, and what to do
// next. Arguments are checked; a null pointer or a wrong size is
// HF_CKPT_INVALID_ARGUMENT, unless the comment says that it may be null. What
// is wrong changes nothing. No exception leaves the library.
//
// Ownership. Handles come from *_new and *_open functions and are given back by
// the *_free function of their kind, which takes null as well. Strings and
// arrays that go in are copied; those that come out belong to the handle and
// stay until its next call, or until what their comment says.
//
// Threads. Different handles are independent. One handle is used by one thread
// at a time; of a checkpointer, that is called the step thread, and another one
// may take over once the first has come back and that is known to it (a lock, a
// join). The library runs a thread of its own beside it.
//
// Stability. Functions and constants are added, not changed. Structs start with
// their size, which the caller sets (the *_INIT macros do), so that a program
// and a library of different age work together.
//
// C99, C++11 and later, and foreign function interfaces.

#ifndef HOLDFAST_CKPT_C_HOLDFAST_CKPT_H_
#define HOLDFAST_CKPT_C_HOLDFAST_CKPT_H_

#include "holdfast_ckpt/core.h"    // codes, errors, log, memory, types
#include "holdfast_ckpt/group.h"   // ranks
#include "holdfast_ckpt/job.h"     // load and save
#include "holdfast_ckpt/reader.h"  // read alone

#endif  // HOLDFAST_CKPT_C_HOLDFAST_CKPT_H_
