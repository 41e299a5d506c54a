// Names of files and of the directories that they lie in.

#include "ckpt/plan/file_names.h"

#include <map>
#include <set>
#include <string>

#include "ckpt/format/manifest_rules.h"
#include "gtest/gtest.h"

namespace holdfast::ckpt {
namespace {

TEST(FileNamesTest, FilesThatFitLieInTheCheckpointsOwnDirectory) {
  for (const uint32_t per_dir : {0u, 4u, 1024u}) {
    const FileNames names(4, per_dir);
    EXPECT_EQ(names.dirs(), 0);
    EXPECT_EQ(names.NameOf(3), "shard-00003.hf");
    EXPECT_EQ(names.DirOf("c", 3), "c");
  }
}

TEST(FileNamesTest, FiveThousandFilesLieAThousandToADirectory) {
  const FileNames names(5120, 1024);
  EXPECT_EQ(names.dirs(), 5);
  EXPECT_EQ(names.NameOf(0), "d0000/shard-00000.hf");
  EXPECT_EQ(names.NameOf(5119), "d0004/shard-05119.hf");
  EXPECT_EQ(names.DirOf("c", 1024), "c/d0001");
  EXPECT_EQ(names.Dir(4), "d0004");
  std::set<std::string> all;
  std::map<std::string, int> in;
  for (uint32_t file = 0; file < 5120; ++file) {
    const std::string name = names.NameOf(file);
    EXPECT_TRUE(all.insert(name).second) << name;
    const std::string dir = name.substr(0, name.find('/'));
    EXPECT_EQ("c/" + dir, names.DirOf("c", file));
    ++in[dir];
  }
  for (const auto& [dir, count] : in) EXPECT_EQ(count, 1024) << dir;
}

TEST(FileNamesTest, TheLastDirectoryMayHoldFewer) {
  const FileNames names(5, 2);
  EXPECT_EQ(names.dirs(), 3);
  EXPECT_EQ(names.NameOf(4), "d0002/shard-00004.hf");
}

TEST(FileNamesTest, OneSpellingOfADirectory) {
  for (const char* name : {"d0000", "d9999", "d10000", "d4294967295"}) {
    EXPECT_TRUE(IsShardDir(name)) << name;
  }
  for (const char* name :
       {"", "d", "d000", "d00000", "d4294967296", "D0000", "d00a0", "d-001",
        "0000", "d0000/", "d99999999999"}) {
    EXPECT_FALSE(IsShardDir(name)) << name;
  }
}

}  // namespace
}  // namespace holdfast::ckpt
