// ckpt/convert/state_source.cc: see state_source.h.

#include "ckpt/convert/state_source.h"

#include "ckpt/format/manifest.h"

namespace holdfast::ckpt {

std::string StateSource::identity() const {
  const std::vector<Digest128> none(items().size());
  return ToHex(DigestOfState(items(), none, attributes()));
}

Digest128 DigestOfState(const std::vector<ItemSpec>& items,
                        std::span<const Digest128> item_digests,
                        const std::map<std::string, std::string>& attributes) {
  Manifest manifest;
  manifest.items = items;
  manifest.item_digests.assign(item_digests.begin(), item_digests.end());
  manifest.attributes = attributes;
  return LogicalDigest(manifest);
}

uint64_t BytesOf(const ItemSpec& item, int64_t count) {
  return static_cast<uint64_t>(count) * SizeOf(item.dtype);
}

}  // namespace holdfast::ckpt
