// ckpt/session/verify_session.h: reads every byte of one checkpoint and says
// what is wrong.
//
// Every file's size, identity, index and every unit's checksum; with `hash`
// also the logical digest of every item, computed from the bytes and compared
// with the manifest's. All damage is collected, not the first.
//
// Memory: the reader's arena (unit_reader.h), 32 bytes an item. Thread: the
// storage's owner.

#ifndef HOLDFAST_CKPT_SESSION_VERIFY_SESSION_H_
#define HOLDFAST_CKPT_SESSION_VERIFY_SESSION_H_

#include <cstdint>
#include <memory>
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
  uint64_t bytes_read = 0;
  double seconds = 0;
};

class VerifySession final : public Session {
 public:
  VerifySession(const SessionEnv& env, std::string dir,
                const Manifest* manifest, bool hash,
                const UnitReaderOptions& options = {});
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
