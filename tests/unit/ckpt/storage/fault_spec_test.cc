// tests/unit/ckpt/storage/fault_spec_test.cc: what a fault line means, and what
// is said about one that means nothing.

#include "ckpt/storage/fault_spec.h"

#include <cerrno>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace holdfast::ckpt {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Act = StorageFault::Act;

TEST(FaultSpecTest, AKillNamesRankOperationAndCount) {
  const auto faults = ParseStorageFaults("rank=1,op=write,n=3,do=kill");
  ASSERT_TRUE(faults.ok()) << faults.status();
  ASSERT_THAT(*faults, SizeIs(1));
  const StorageFault& fault = (*faults)[0];
  EXPECT_EQ(fault.rank, 1);
  EXPECT_FALSE(fault.any_op);
  EXPECT_EQ(fault.op, StorageOp::kWrite);
  EXPECT_EQ(fault.n, 3);
  EXPECT_EQ(fault.act, Act::kKill);
  EXPECT_FALSE(fault.after);
}

TEST(FaultSpecTest, SeveralFaultsAndTheirDefaults) {
  const auto faults = ParseStorageFaults(
      "do=fail;op=put,match=MANIFEST,do=kill,when=after;"
      "op=write,n=5,do=fail,error=ENOSPC,lasting=yes;"
      "op=write,do=delay,ms=200;do=count");
  ASSERT_TRUE(faults.ok()) << faults.status();
  ASSERT_THAT(*faults, SizeIs(5));
  EXPECT_TRUE((*faults)[0].any_op);
  EXPECT_EQ((*faults)[0].rank, -1);
  EXPECT_EQ((*faults)[0].n, 1);
  EXPECT_EQ((*faults)[0].error, EIO);
  EXPECT_FALSE((*faults)[0].lasting);
  EXPECT_EQ((*faults)[1].match, "MANIFEST");
  EXPECT_TRUE((*faults)[1].after);
  EXPECT_EQ((*faults)[2].error, ENOSPC);
  EXPECT_TRUE((*faults)[2].lasting);
  EXPECT_EQ((*faults)[3].delay_ms, 200);
  EXPECT_TRUE((*faults)[3].lasting);
  EXPECT_EQ((*faults)[4].act, Act::kCount);
}

TEST(FaultSpecTest, NothingIsNoFault) {
  EXPECT_THAT(*ParseStorageFaults(""), IsEmpty());
}

TEST(FaultSpecTest, EveryOperationHasAName) {
  for (const char* const name :
       {"create", "write", "sync", "mkdir", "syncdir", "rename", "remove",
        "put", "open", "read", "list", "get"}) {
    const auto faults = ParseStorageFaults(std::string("do=count,op=") + name);
    ASSERT_TRUE(faults.ok()) << faults.status();
    EXPECT_EQ(Name((*faults)[0].op), name);
  }
}

TEST(FaultSpecTest, WhatIsWrongIsNamed) {
  struct Wrong {
    const char* spec;
    const char* message;
  };
  for (const auto& [spec, message] : {
           Wrong{"op=write", "found 'op=write', expected do=kill"},
           Wrong{"op=wrte,do=kill", "found 'op=wrte', expected op=any or one"},
           Wrong{"do=explode", "found 'do=explode', expected do=kill"},
           Wrong{"at=-1,do=kill", "found 'at=-1', expected a whole number"},
           Wrong{"n=0,do=kill", "found 'n=0', expected a whole number, 1 to"},
           Wrong{"n=3x,do=kill", "found 'n=3x'"},
           Wrong{"rank=-1,do=kill", "found 'rank=-1'"},
           Wrong{"kill", "found 'kill', expected KEY=VALUE"},
           Wrong{"do=kill,do=kill", "expected 'do' only once"},
           Wrong{"do=kill,ms=3", "expected 'ms' only with do=delay"},
           Wrong{"do=kill,lasting=yes", "'lasting' only with"},
           Wrong{"do=fail,when=after", "'when' only with do=kill or do=stop"},
           Wrong{"do=fail,error=EBADCAFE", "expected EIO, ENOSPC"},
           Wrong{"do=delay", "expected ms=MILLISECONDS"},
           Wrong{"do=count;", "found ''"},
           Wrong{"do=kill,when=now", "expected before or after"},
       }) {
    const auto faults = ParseStorageFaults(spec);
    EXPECT_EQ(faults.status().code(), absl::StatusCode::kInvalidArgument)
        << spec;
    EXPECT_THAT(std::string(faults.status().message()), HasSubstr(message));
  }
}

}  // namespace
}  // namespace holdfast::ckpt
