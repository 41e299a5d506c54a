// ckpt/convert/checkpoint_source.h: the state of a committed checkpoint, from
// RUN, RUN@STEP or a checkpoint's own directory.
//
// Reads whole units and compares their checksums before anybody sees a byte.
// Calls of Fill that follow each other through a tensor mostly meet in the
// middle of a unit; such units are kept (kept_bytes_max) until the rest of them
// has been asked for, so that a conversion reads each stored byte about once.
//
// Memory: readers x (reads in flight + one file's index), and what is kept.
// Threads: Fill may be called by `readers` threads at once.

#ifndef HOLDFAST_CKPT_CONVERT_CHECKPOINT_SOURCE_H_
#define HOLDFAST_CKPT_CONVERT_CHECKPOINT_SOURCE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ckpt/base/clock.h"
#include "ckpt/convert/state_source.h"
#include "ckpt/format/manifest.h"
#include "ckpt/session/catalog_locate.h"
#include "ckpt/session/unit_reader.h"

namespace holdfast::ckpt {

struct CheckpointSourceOptions {
  int readers = 1;
  uint32_t queue_depth = 16;  // reads in flight, of each reader
  UnitReaderOptions read = {};
  // Units that are kept for a later call.
  uint64_t kept_bytes_max = uint64_t{64} << 20;
};

class CheckpointSource final : public StateSource {
 public:
  // `text` as in LocateCheckpoint (ckpt/session/catalog_locate.h).
  // kNotFound: no such checkpoint. kDataLoss, kFailedPrecondition: its manifest
  // is damaged or needs a newer reader.
  static absl::StatusOr<std::unique_ptr<CheckpointSource>> Open(
      const std::string& text, const CheckpointSourceOptions& options,
      Clock& clock);
  ~CheckpointSource() override;

  const std::vector<ItemSpec>& items() const override;
  const std::map<std::string, std::string>& attributes() const override;
  absl::Status Fill(std::span<const WantedRun> wants) override;
  int fills_at_once() const override;
  std::string identity() const override;
  std::span<const Digest128> recorded_digests() const override;
  uint64_t bytes_read() const override;

  const Manifest& manifest() const;
  // The checkpoint's own directory, for messages.
  const std::string& path() const;

 private:
  struct State;
  explicit CheckpointSource(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_CONVERT_CHECKPOINT_SOURCE_H_
