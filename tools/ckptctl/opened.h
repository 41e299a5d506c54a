// tools/ckptctl/opened.h: a checkpoint that a command works on.

#ifndef HOLDFAST_TOOLS_CKPTCTL_OPENED_H_
#define HOLDFAST_TOOLS_CKPTCTL_OPENED_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "ckpt/format/manifest.h"
#include "ckpt/session/catalog_locate.h"
#include "ckpt/session/load_session.h"
#include "ckpt/session/session.h"
#include "ckpt/session/unit_reader.h"
#include "tools/common/json_output.h"

namespace holdfast::tools {

struct Opened {
  ckpt::LocatedCheckpoint place;
  std::unique_ptr<ckpt::Manifest> manifest;
  ckpt::ManifestSummary summary;

  // For one session at a time.
  ckpt::SessionEnv env() const;
};

// Finds the checkpoint that `text` means and reads its manifest. `readers` is
// the number of reads that its storage shall have in flight.
absl::StatusOr<Opened> OpenCheckpoint(const std::string& text, int readers);

ckpt::UnitReaderOptions ReaderOptions(int readers);

// Another storage at the same place, for another thread.
absl::StatusOr<std::unique_ptr<ckpt::Storage>> ReopenStorage(
    const Opened& opened, int readers);
ckpt::SessionEnv EnvOf(ckpt::Storage* storage);

// Drives a session to its end, and calls `shown` whenever answers have come or
// 10 ms have passed.
template <typename Session, typename Shown>
void Drive(ckpt::Storage* storage, Session* session, Shown shown) {
  while (true) {
    session->Poll();
    if (session->done()) return;
    ckpt::Completion answers[64];
    const size_t count = storage->Poll(answers);
    for (size_t i = 0; i < count; ++i) session->OnCompletion(answers[i]);
    if (count == 0) storage->WaitForCompletion(/*wait_ms=*/10);
    shown();
  }
}

// "f32[90,64]"
std::string TypeText(const ckpt::ItemSpec& item);

// Of all files, as they would be without a codec.
uint64_t PlainBytes(const ckpt::Manifest& manifest);

// Id, step, layout and so on of a checkpoint, as every command prints them.
Json DescribeJson(const Opened& opened);

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_CKPTCTL_OPENED_H_
