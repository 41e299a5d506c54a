// ckpt/session/unit_coder.h: what compresses units for a save: its caller, or
// threads of its own.
//
// A session submits jobs and takes the answers from Poll, as with a Storage.
// Without threads the work is done inside Poll, one job a call, in order, so a
// simulator that polls sees the same in every run.
//
// Thread: one owner makes every call. Memory: an encoder a thread and the
//     queues, taken by the constructors.

#ifndef HOLDFAST_CKPT_SESSION_UNIT_CODER_H_
#define HOLDFAST_CKPT_SESSION_UNIT_CODER_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <span>

#include "ckpt/format/coded_units.h"

namespace holdfast::ckpt {

class UnitCoder {
 public:
  struct Job {
    size_t unit = 0;
    int planes = 1;
    // Both stay, and `plain` stays unchanged, until the answer is taken.
    std::span<const std::byte> plain;
    std::span<std::byte> out;
  };
  struct Answer {
    size_t unit = 0;
    CodedUnit coded;  // without its offset
  };

  virtual ~UnitCoder() = default;

  virtual void Submit(const Job& job) = 0;
  // An answer, if there is one.
  virtual std::optional<Answer> Poll() = 0;
  // Forgets the jobs that nobody has begun; says how many they were.
  virtual size_t Drop() = 0;
  // Poll has work to do that nobody else does.
  virtual bool eager() const = 0;
};

// At most `jobs_max` jobs of up to `plain_max` bytes are unanswered. `threads`
// 0: Poll does the work; so it does where the system refuses all of them.
std::unique_ptr<UnitCoder> MakeUnitCoder(int level, size_t plain_max,
                                         size_t jobs_max, int threads);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_SESSION_UNIT_CODER_H_
