// ckpt/convert/state_source.h: a whole logical state that can be read in parts:
// a checkpoint, a directory of safetensors, an archive.
//
// Whoever writes a checkpoint (checkpoint_writer.h) or exports one asks for
// runs of items and gets bytes that are known to be good, in bounded memory,
// wherever they come from.

#ifndef HOLDFAST_CKPT_CONVERT_STATE_SOURCE_H_
#define HOLDFAST_CKPT_CONVERT_STATE_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ckpt/format/digest.h"
#include "ckpt/layout/box.h"
#include "ckpt/layout/holding.h"

namespace holdfast::ckpt {

// Elements [first, first + count) of the row-major order of `part`, a box of
// the item, into `out`, which has exactly their bytes and may lie anywhere.
struct WantedRun {
  ItemIndex item = 0;
  Box part;
  int64_t first = 0;
  int64_t count = 0;
  std::span<std::byte> out;
};

class StateSource {
 public:
  virtual ~StateSource() = default;

  // Sorted by (name, kind), each once; at most kDimensionsMax dimensions.
  virtual const std::vector<ItemSpec>& items() const = 0;
  // Everything that is not an item, as in a manifest (ckpt/format/manifest.h).
  virtual const std::map<std::string, std::string>& attributes() const = 0;

  // Blocks until every byte is there, verified as far as the source allows. The
  // wants of one call belong together and come in the order of the source's
  // own rows where that is possible; a call asks for some tens of MiB. Its
  // errors: kDataLoss (bytes that are not what was written), kInvalidArgument
  // (a malformed foreign file), others as the storage says.
  virtual absl::Status Fill(std::span<const WantedRun> wants) = 0;

  // So many threads may be in Fill at the same time.
  virtual int fills_at_once() const { return 1; }

  // What the state is, in one line: a conversion that was interrupted goes on
  // only where this is the same. A source over files adds names, sizes and
  // times. The default is a digest of items and attributes.
  virtual std::string identity() const;

  // The items' logical digests as the source has recorded them, in the order of
  // items(); empty: it has none. A conversion compares its own with them.
  virtual std::span<const Digest128> recorded_digests() const { return {}; }
  // False: it has none for this item, though it has some; what it says there is
  // not compared.
  virtual bool records_digest_of(ItemIndex) const {
    return !recorded_digests().empty();
  }

  // Read from files so far. Any thread.
  virtual uint64_t bytes_read() const { return 0; }
};

// The digest of a whole state, as LogicalDigest of a manifest that has these.
Digest128 DigestOfState(const std::vector<ItemSpec>& items,
                        std::span<const Digest128> item_digests,
                        const std::map<std::string, std::string>& attributes);

// The bytes of a run.
uint64_t BytesOf(const ItemSpec& item, int64_t count);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_CONVERT_STATE_SOURCE_H_
