// ckpt/format/manifest_rules.h: the rules of a manifest, one by one, for
// decoding to apply as it goes. Private to ckpt/format. Each is kDataLoss with
// a message that names what breaks it.

#ifndef HOLDFAST_CKPT_FORMAT_MANIFEST_RULES_H_
#define HOLDFAST_CKPT_FORMAT_MANIFEST_RULES_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "ckpt/format/manifest.h"

namespace holdfast::ckpt {

// Elements of an item and bytes of a file, at most: sums of them do not
// overflow 64 bits.
inline constexpr int64_t kItemElementsMax = int64_t{1} << 56;
inline constexpr uint64_t kFileBytesMax = uint64_t{1} << 60;

// "d0003", a directory of shards in a checkpoint's own, and whether a part of a
// path is such a name.
std::string ShardDirName(uint32_t number);
bool IsShardDir(std::string_view part);

bool HasFeature(const Manifest& manifest, std::string_view feature);

// kFailedPrecondition names the first that this program does not know.
absl::Status CheckFeaturesKnown(const std::vector<std::string>& features_must);
// The features say that files may be coded; then each says whether it is.
bool HasCodedFiles(const Manifest& manifest);

// Name, kind, dtype and shape are possible.
absl::Status CheckItem(const ItemSpec& item);
// `part` lies in the item and is not empty.
absl::Status CheckPart(const ItemSpec& item, const Box& part);
// Name and sizes, without the chunks.
absl::Status CheckFile(const ShardFile& file);
// The chunk's run, bytes and place; `items` and the file have been checked.
absl::Status CheckChunk(const std::vector<ItemSpec>& items,
                        const ShardFile& file, const Chunk& chunk);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_FORMAT_MANIFEST_RULES_H_
