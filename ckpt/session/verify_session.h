// ckpt/session/verify_session.h: reads every byte of one checkpoint and says
// what is wrong.
//
// Every file's size, identity, index and every unit's checksum; with `hash`
// also the logical digest of every item, computed from the bytes and compared
// with the manifest's. All damage is collected, not the first.
//
// Several sessions, each with a storage and a thread of its own, may take turns
// over the parts of one checkpoint, when one core cannot hash as fast as the
// disk reads; MergeVerified then says what they found together.
//
// Memory: the reader's arena (unit_reader.h), 32 bytes an item. Thread: the
// storage's owner.

#ifndef HOLDFAST_CKPT_SESSION_VERIFY_SESSION_H_
#define HOLDFAST_CKPT_SESSION_VERIFY_SESSION_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ckpt/format/digest.h"
#include "ckpt/format/manifest.h"
#include "ckpt/session/load_session.h"
#include "ckpt/session/session.h"
#include "ckpt/session/unit_reader.h"

namespace holdfast::ckpt {

struct VerifyOutcome {
  // OK; kDataLoss: `damage` or `digests_wrong` say where; others as the storage
  // says.
  absl::Status status;
  std::vector<UnitDamage> damage;
  std::vector<Digest128> item_digests;   // with `hash`, one an item
  std::vector<ItemIndex> digests_wrong;  // differ from the manifest's
  // Each stored byte once: what surrounds the data of a file that is read in
  // parts is read with each part, and counted with the first.
  uint64_t bytes_read = 0;
  double seconds = 0;
};

// The units of a file that begin in [first, end) of its plain image.
struct VerifyPart {
  uint32_t file = 0;
  uint64_t first = 0;
  uint64_t end = UINT64_MAX;
  friend bool operator==(const VerifyPart&, const VerifyPart&) = default;
};

// All of a checkpoint in parts of about `part_bytes`, in file order; the last
// one of a file may have up to half as much more, and a file has at most some
// hundreds. Takes no memory for them: a
// manifest may say anything about sizes. Any thread.
class VerifyParts {
 public:
  VerifyParts(const Manifest* manifest, uint64_t part_bytes)
      : manifest_(manifest), part_bytes_(part_bytes) {}

  std::optional<VerifyPart> Next();
  // Nothing more of this file: it is not the one that the manifest means.
  void Drop(uint32_t file);
  // Nothing more at all.
  void DropAll();

 private:
  const Manifest* const manifest_;
  const uint64_t part_bytes_;
  std::mutex mutex_;
  VerifyPart at_;  // where the next one begins
};

// What sessions found that between them have verified all parts. With `hash`
// their sums of digests are added up and compared with the manifest's.
VerifyOutcome MergeVerified(const Manifest& manifest, bool hash,
                            std::span<const VerifyOutcome> found);

class VerifySession final : public Session {
 public:
  VerifySession(const SessionEnv& env, std::string dir,
                const Manifest* manifest, bool hash,
                const UnitReaderOptions& options = {});
  // One of several: takes from `parts` until there are no more. Its outcome's
  // digests are sums over what it has read, and compared with nothing.
  VerifySession(const SessionEnv& env, std::string dir,
                const Manifest* manifest, bool hash,
                const UnitReaderOptions& options, VerifyParts* parts);
  ~VerifySession() override;

  void OnCompletion(const Completion& completion) override;
  bool OnMessage(const Message& message) override;  // takes none
  void Poll() override;
  bool done() const override;

  LoadProgress progress() const;
  const VerifyOutcome& outcome() const;  // after done()

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_SESSION_VERIFY_SESSION_H_
