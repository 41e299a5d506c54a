// ckpt/storage/file_system.cc: statfs(2), and the names of its numbers.

#include "ckpt/storage/file_system.h"

#include <sys/vfs.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

#include "absl/strings/str_format.h"
#include "ckpt/storage/errno_status.h"

namespace holdfast::ckpt {
namespace {

enum class Kind { kLocal, kMemory, kNetwork };

struct Known {
  uint32_t magic;
  const char* name;
  Kind kind;
};

// From statfs(2) and the file systems' own sources. ext2 and ext3 have the
// number of ext4, whose driver mounts them.
constexpr Known kKnown[] = {
    {0xef53, "ext4", Kind::kLocal},
    {0x58465342, "xfs", Kind::kLocal},
    {0x9123683e, "btrfs", Kind::kLocal},
    {0x2fc12fc1, "zfs", Kind::kLocal},
    {0xf2f52010, "f2fs", Kind::kLocal},
    {0x794c7630, "overlay", Kind::kLocal},
    {0x4d44, "vfat", Kind::kLocal},
    {0x2011bab0, "exfat", Kind::kLocal},
    {0x01021994, "tmpfs", Kind::kMemory},
    {0x858458f6, "ramfs", Kind::kMemory},
    {0x958458f6, "hugetlbfs", Kind::kMemory},
    {0x6969, "nfs", Kind::kNetwork},
    {0x0bd00bd0, "lustre", Kind::kNetwork},
    {0x47504653, "gpfs", Kind::kNetwork},
    {0x19830326, "beegfs", Kind::kNetwork},
    {0x00c36400, "ceph", Kind::kNetwork},
    {0xff534d42, "cifs", Kind::kNetwork},
    {0xfe534d42, "smb2", Kind::kNetwork},
    {0x01021997, "9p", Kind::kNetwork},
    {0x65735546, "fuse", Kind::kNetwork},
};

}  // namespace

absl::StatusOr<FileSystemInfo> LookAtFileSystem(const std::string& path) {
  struct statfs system = {};
  if (::statfs(path.c_str(), &system) != 0) {
    return ErrnoStatus(errno, "look at the file system of", path);
  }
  const auto magic = static_cast<uint32_t>(system.f_type);
  FileSystemInfo info;
  info.bytes_free = uint64_t{system.f_bavail} * system.f_bsize;
  info.bytes_total = uint64_t{system.f_blocks} * system.f_bsize;
  const auto known =
      std::find_if(std::begin(kKnown), std::end(kKnown),
                   [magic](const Known& k) { return k.magic == magic; });
  if (known == std::end(kKnown)) {
    info.type = absl::StrFormat("0x%x", magic);
    return info;
  }
  info.type = known->name;
  info.in_memory = known->kind == Kind::kMemory;
  info.network = known->kind == Kind::kNetwork;
  return info;
}

}  // namespace holdfast::ckpt
