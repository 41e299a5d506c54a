// Directories that were not made by us, or are no longer what we made: each is
// refused with a message and an exit code, and nothing hangs, grows or is read
// outside of them.

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli/ckptctl_fixture.h"

namespace holdfast::tests {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

class CkptctlHostileTest : public CkptctlTest {
 protected:
  // Puts one of the things that are no regular files under `path`.
  void Replace(const std::string& path, const std::string& by) const {
    std::filesystem::rename(path, path + ".away");
    if (by == "fifo") {
      ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
    } else if (by == "link") {
      std::filesystem::create_symlink(path + ".away", path);
    } else if (by == "dangling link") {
      std::filesystem::create_symlink("/nonexistent", path);
    } else if (by == "device") {
      std::filesystem::create_symlink("/dev/zero", path);
    } else if (by == "socket") {
      sockaddr_un address = {};
      address.sun_family = AF_UNIX;
      // Its name may be too long: bound here, moved there.
      const std::string name =
          "/tmp/holdfast-" + std::to_string(getpid()) + ".socket";
      std::snprintf(address.sun_path, sizeof address.sun_path, "%s",
                    name.c_str());
      const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
      ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address),
                0);
      close(fd);
      std::error_code error;
      std::filesystem::rename(name, path, error);
      if (error) {  // Another file system.
        std::filesystem::remove(name);
        std::filesystem::rename(path + ".away", path);
        GTEST_SKIP() << "no socket can be moved there";
      }
    } else {
      std::filesystem::create_directory(path);
    }
  }
  void Restore(const std::string& path) const {
    std::filesystem::remove(path);
    std::filesystem::rename(path + ".away", path);
  }
  static const std::vector<std::string>& Kinds() {
    static const auto* const kinds = new std::vector<std::string>{
        "fifo", "link", "dangling link", "device", "socket", "directory"};
    return *kinds;
  }

  // A checkpoint by itself whose manifest is `manifest`, with nothing else.
  std::string WriteAlone(const std::string& name,
                         const ckpt::Manifest& manifest) const {
    std::filesystem::create_directory(folder_ / name);
    const std::vector<std::byte> bytes = ckpt::EncodeManifest(manifest);
    folder_.Write(name + "/MANIFEST",
                  {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    return folder_ / name;
  }
  // One item of so many elements in one file, all of it in one chunk.
  static ckpt::Manifest OneItem(std::vector<int64_t> shape, uint32_t units) {
    ckpt::Manifest manifest;
    manifest.run_id = kTestRun;
    manifest.id = {600, 2, 5};
    manifest.commit_number = 3;
    manifest.world = 1;
    manifest.layout = "hostile";
    manifest.items = {{"w", "weight", ckpt::DType::kF32, std::move(shape)}};
    manifest.item_digests.resize(1);
    ckpt::Chunk chunk;
    chunk.part = ckpt::WholeBox(manifest.items[0].shape);
    chunk.count = chunk.part.elements();
    chunk.offset = 4096;
    chunk.bytes_stored = 4 * chunk.count;
    ckpt::ShardFile file;
    file.name = "shard-00000.hf";
    file.unit_count = units;
    file.bytes = 4096 + (chunk.bytes_stored + 4095) / 4096 * 4096 +
                 ckpt::ShardIndexBytes(units) + 4096;
    file.chunks = {chunk};
    manifest.files = {file};
    return manifest;
  }
};

TEST_F(CkptctlHostileTest, AShardThatIsNoRegularFileIsNamed) {
  const std::string shard = DirOf(k300) + "/shard-00001.hf";
  for (const std::string& kind : Kinds()) {
    SCOPED_TRACE(kind);
    Replace(shard, kind);
    if (IsSkipped()) continue;
    const Outcome verified = Ckptctl({"verify", run()});
    EXPECT_EQ(verified.code, 65) << verified;
    EXPECT_THAT(verified.out, HasSubstr("shard-00001.hf"));
    EXPECT_THAT(
        verified.out,
        AnyOf(HasSubstr("symbolic link"), HasSubstr("special file"),
              HasSubstr("a socket or a device"), HasSubstr("a directory")));
    EXPECT_EQ(Ckptctl({"diff", run(), run() + "@200"}).code, 65);
    Restore(shard);
  }
  EXPECT_EQ(Ckptctl({"verify", run()}).code, 0);
}

TEST_F(CkptctlHostileTest, AManifestThatIsNoRegularFileIsDamage) {
  const std::string manifest = DirOf(k300) + "/MANIFEST";
  for (const std::string& kind : Kinds()) {
    if (kind == "dangling link") continue;  // to every eye, none is there
    SCOPED_TRACE(kind);
    Replace(manifest, kind);
    if (IsSkipped()) continue;
    for (const char* verb : {"show", "verify", "ls"}) {
      const Outcome outcome = Ckptctl({verb, DirOf(k300)});
      EXPECT_EQ(outcome.code, 65) << outcome;
      EXPECT_THAT(outcome.err, HasSubstr("MANIFEST"));
    }
    // In the run it is damaged, and the one before is the newest.
    EXPECT_EQ(JsonOf(Ckptctl({"ls", run(), "--json"}))["newest"],
              ToString(k200));
    Restore(manifest);
  }
}

// The only directories that a manifest can name: d0000 and so on.
TEST_F(CkptctlHostileTest, ADirectoryOfShardsThatIsALinkIsNotFollowed) {
  std::filesystem::copy(
      HOLDFAST_SOURCE_DIR "/tests/golden/format-v1-directories",
      folder_ / "golden", std::filesystem::copy_options::recursive);
  ASSERT_EQ(Ckptctl({"verify", folder_ / "golden"}).code, 0);
  std::filesystem::rename(folder_ / "golden/d0000", folder_ / "outside");
  std::filesystem::create_symlink(folder_ / "outside",
                                  folder_ / "golden/d0000");
  const Outcome outcome = Ckptctl({"verify", folder_ / "golden"});
  EXPECT_EQ(outcome.code, 65) << outcome;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("d0000"), HasSubstr("not read")));
}

TEST_F(CkptctlHostileTest, NamesThatLeadOutsideAreRefused) {
  const std::vector<std::byte> good = ckpt::EncodeManifest(OneItem({1000}, 1));
  const std::string bytes(reinterpret_cast<const char*>(good.data()),
                          good.size());
  const size_t at = bytes.find("shard-00000.hf");
  ASSERT_NE(at, bytes.npos);
  // As long as the name that they take the place of.
  for (const std::string name :
       {"../../etc/pass", "/etc/passwd.hf", "a/bcdefghij.hf", "d0000/../xx.hf",
        ".hidden-000.hf"}) {
    std::string hostile = bytes;
    hostile.replace(at, name.size(), name);
    const uint32_t crc = ckpt::Crc32c(std::as_bytes(
        std::span(hostile).first(hostile.size() - sizeof(uint32_t))));
    std::memcpy(&hostile[hostile.size() - sizeof crc], &crc, sizeof crc);
    folder_.Write("MANIFEST", hostile);
    const Outcome outcome = Ckptctl({"verify", folder_ / "."});
    EXPECT_EQ(outcome.code, 65) << name << outcome;
    EXPECT_THAT(outcome.err, HasSubstr("the manifest lists a file '" + name));
  }
}

// 2^49 elements, 2 PiB, of which there is not a byte.
TEST_F(CkptctlHostileTest, SizesThatNoMemoryHoldsAreNoReasonToDie) {
  const int64_t most = int64_t{1} << 49;
  const std::string dir = WriteAlone("huge", OneItem({1, most}, UINT32_MAX));
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{
           {"verify", dir}, {"verify", dir, "--hash"}, {"diff", dir, dir}}) {
    const Outcome outcome = Ckptctl(arguments);
    EXPECT_EQ(outcome.code, 65) << outcome;
    EXPECT_THAT(outcome.out + outcome.err, HasSubstr("shard-00000.hf"));
  }
}

// A file with holes costs its maker nothing.
TEST_F(CkptctlHostileTest, AnIndexOfGigabytesIsNotRead) {
  const uint32_t units = 80'000'000;
  ckpt::Manifest manifest = OneItem({int64_t{units} * 1024}, units);
  const std::string dir = WriteAlone("holes", manifest);
  const std::string path = dir + "/shard-00000.hf";
  std::ofstream(path).put('x');
  std::error_code error;
  std::filesystem::resize_file(path, manifest.files[0].bytes, error);
  if (error) GTEST_SKIP() << "no such file here: " << error.message();
  const ckpt::ShardIdentity identity{manifest.run_id, manifest.id, 0, 1};
  const std::vector<std::byte> head = ckpt::EncodeShardHeader(identity);
  const std::vector<std::byte> foot = ckpt::EncodeShardFooter(
      identity, manifest.files[0].bytes - 4096 - ckpt::ShardIndexBytes(units),
      units, 0);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.write(reinterpret_cast<const char*>(head.data()), head.size());
  file.seekp(manifest.files[0].bytes - 4096);
  file.write(reinterpret_cast<const char*>(foot.data()), foot.size());
  file.close();
  const Outcome outcome = Ckptctl({"verify", dir, "--no-raw-speed"});
  EXPECT_EQ(outcome.code, 65) << outcome;
  EXPECT_THAT(outcome.out, HasSubstr("at most 1073741824 are read"));
}

// A sector under the manifest that the device does not give, whereas it gives
// the files beside it.
TEST_F(CkptctlHostileTest, AManifestOnABadSectorIsDamageAndSaysSo) {
  const std::string bad =
      "match=" + AttemptDir(k300) + "/MANIFEST,op=get,do=fail,lasting=yes";
  setenv("HOLDFAST_FAULT", bad.c_str(), 1);
  const Outcome listed = Ckptctl({"ls", run(), "--json"});
  // By its own path the directory is the storage's root: a shorter name.
  setenv("HOLDFAST_FAULT", "match=MANIFEST,op=get,do=fail,lasting=yes", 1);
  const Outcome alone = Ckptctl({"verify", DirOf(k300)});
  setenv("HOLDFAST_FAULT",
         "op=get,do=fail,lasting=yes;op=read,do=fail,lasting=yes", 1);
  const Outcome away = Ckptctl({"show", DirOf(k300)});
  unsetenv("HOLDFAST_FAULT");
  const Json json = JsonOf(listed);
  EXPECT_EQ(json["newest"], ToString(k200));
  EXPECT_EQ(json["checkpoints"][0]["state"], "damaged");
  EXPECT_THAT(json["checkpoints"][0]["reason"], HasSubstr("bad sector"));
  EXPECT_EQ(alone.code, 65) << alone;
  EXPECT_THAT(alone.err, AllOf(HasSubstr("MANIFEST"), HasSubstr("bad sector"),
                               HasSubstr("the one before it can")));
  // A storage of which nothing can be read says nothing about a checkpoint.
  EXPECT_EQ(away.code, 74) << away;
}

}  // namespace
}  // namespace holdfast::tests
