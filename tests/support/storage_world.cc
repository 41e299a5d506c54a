// tests/support/storage_world.cc: the backends, each with its way of planting
// trouble.

#include "tests/support/storage_world.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <utility>

#include "ckpt/base/check.h"
#include "ckpt/storage/fault_storage.h"
#include "ckpt/storage/fd.h"
#include "ckpt/storage/posix_storage.h"
#include "ckpt/storage/storage_probe.h"
#include "ckpt/storage/uring_storage.h"
#include "tests/support/sim_storage.h"
#include "tests/support/temp_dir.h"

namespace holdfast::tests {
namespace {

using ckpt::Storage;

// A directory of this machine.
class RealWorld : public StorageWorld {
 public:
  ~RealWorld() override { Unlimit(); }

  void PlantSymlink(std::string_view name) override {
    const std::string path = dir_.path() + "/" + std::string(name);
    HF_CHECK(::symlink("nowhere", path.c_str()) == 0, "symlink %s", path);
  }
  void PlantLeftover(std::string_view dir) override {
    std::ofstream(dir_.path() + "/" + std::string(dir) + "/.tmp.1.1") << "x";
  }
  void LimitFileSize(uint64_t bytes) override {
    // The signal would end the process; without it writes say EFBIG.
    std::signal(SIGXFSZ, SIG_IGN);
    rlimit limit = {};
    ::getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = bytes;
    HF_CHECK(::setrlimit(RLIMIT_FSIZE, &limit) == 0, "setrlimit");
  }
  void Unlimit() override {
    rlimit limit = {};
    ::getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }

 protected:
  TempDir dir_;
};

class PosixWorld final : public RealWorld {
 public:
  std::unique_ptr<Storage> Start(size_t queue_depth) override {
    return *ckpt::OpenPosixStorage(
        {.root = dir_.path(),
         .queue_depth = static_cast<uint32_t>(queue_depth)});
  }
};

class UringWorld final : public RealWorld {
 public:
  UringWorld(bool direct_io, bool faults)
      : direct_io_(direct_io), faults_(faults) {}

  std::string WhyNot() const override {
    const absl::Status uring = ckpt::ProbeUring();
    if (!uring.ok()) return uring.ToString();
    const ckpt::Fd root(::open(dir_.path().c_str(), O_RDONLY | O_DIRECTORY));
    const absl::Status direct = ckpt::ProbeDirectIo(root.get());
    return direct_io_ && !direct.ok() ? direct.ToString() : "";
  }
  std::unique_ptr<Storage> Start(size_t queue_depth) override {
    std::unique_ptr<Storage> storage = *ckpt::OpenUringStorage(
        {.root = dir_.path(),
         .queue_depth = static_cast<uint32_t>(queue_depth),
         .direct_io = direct_io_});
    if (!faults_) return storage;
    return std::make_unique<ckpt::FaultStorage>(
        std::move(storage),
        *ckpt::ParseStorageFaults("match=no such name,do=kill;"
                                  "op=write,match=f,do=delay,ms=1;"
                                  "op=put,do=delay,ms=1"),
        /*rank=*/0);
  }

 private:
  bool direct_io_;
  bool faults_;
};

class SimWorld final : public StorageWorld {
 public:
  explicit SimWorld(bool object_store)
      : disk_({.object_store = object_store}) {}

  std::unique_ptr<Storage> Start(size_t queue_depth) override {
    return std::make_unique<SimStorage>(
        disk_,
        SimStorageOptions{.process = processes_++, .queue_depth = queue_depth});
  }
  void PlantSymlink(std::string_view name) override {
    disk_.PlantSymlink(name);
  }
  void PlantLeftover(std::string_view dir) override {
    HF_CHECK(disk_.DoCreate(std::string(dir) + "/.tmp.1.1", 0).ok(), "%s", dir);
  }
  void LimitFileSize(uint64_t bytes) override { disk_.LimitSpace(bytes); }
  void Unlimit() override { disk_.LimitSpace(UINT64_MAX); }

 private:
  SimDisk disk_;
  int processes_ = 0;
};

}  // namespace

std::vector<NamedWorld> AllStorageWorlds() {
  return {
      {"posix", [] { return std::make_unique<PosixWorld>(); }},
      {"io_uring", [] { return std::make_unique<UringWorld>(true, false); }},
      {"io_uring_buffered",
       [] { return std::make_unique<UringWorld>(false, false); }},
      {"with_faults", [] { return std::make_unique<UringWorld>(true, true); }},
      {"sim", [] { return std::make_unique<SimWorld>(false); }},
      {"sim_object_store", [] { return std::make_unique<SimWorld>(true); }},
  };
}

}  // namespace holdfast::tests
