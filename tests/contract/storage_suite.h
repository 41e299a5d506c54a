// tests/contract/storage_suite.h: a storage under test, and what its cases are
// written with. For the test programs of this folder alone.

#ifndef HOLDFAST_TESTS_CONTRACT_STORAGE_SUITE_H_
#define HOLDFAST_TESTS_CONTRACT_STORAGE_SUITE_H_

#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/base/aligned_buffer.h"
#include "ckpt/storage/blocking.h"
#include "ckpt/storage/storage.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/storage_world.h"

namespace holdfast::tests {

using ckpt::AlignedBuffer;
using ckpt::Blocking;
using ckpt::Completion;
using ckpt::DirEntry;
using ckpt::FileId;
using ckpt::OpTag;
using ckpt::Storage;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

inline constexpr FileId kFile{1};
inline constexpr FileId kOther{2};
inline constexpr size_t kBlock = ckpt::kStorageAlignment;

MATCHER(IsOk, "is OK") {
  *result_listener << arg;
  return arg.ok();
}
MATCHER_P(Fails, code, "") {
  *result_listener << arg;
  return arg.code() == code;
}
inline constexpr auto kAlreadyExists = absl::StatusCode::kAlreadyExists;
inline constexpr auto kNotFound = absl::StatusCode::kNotFound;
inline constexpr auto kWrongKind = absl::StatusCode::kFailedPrecondition;
inline constexpr auto kNoSpace = absl::StatusCode::kResourceExhausted;
inline constexpr auto kPastEnd = absl::StatusCode::kOutOfRange;

inline std::vector<std::byte> Bytes(std::string_view text) {
  const auto* const data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}
inline std::string Text(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Bytes that differ from place to place, so that misplaced ones show.
inline AlignedBuffer Pattern(size_t size, uint64_t seed) {
  AlignedBuffer buffer(size);
  for (size_t i = 0; i < size; ++i) {
    buffer.data()[i] = static_cast<std::byte>((seed + i) * 2654435761u >> 11);
  }
  return buffer;
}

inline bool SameBytes(std::span<const std::byte> a,
                      std::span<const std::byte> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
}

class StorageTest : public ::testing::TestWithParam<NamedWorld> {
 protected:
  void SetUp() override {
    world_ = GetParam().make();
    if (const std::string why = world_->WhyNot(); !why.empty()) {
      GTEST_SKIP() << why;
    }
    storage_ = world_->Start();
    io_ = std::make_unique<Blocking>(*storage_);
  }

  bool has_directories() const { return storage_->traits().has_directories; }

  // A file of these bytes, closed, its data safe.
  void WriteFile(std::string_view name, std::span<const std::byte> data) {
    ASSERT_THAT(io_->Create(name, kFile, data.size()), IsOk());
    ASSERT_THAT(io_->Write(kFile, 0, data), IsOk());
    ASSERT_THAT(io_->Sync(kFile), IsOk());
    ASSERT_THAT(io_->Close(kFile), IsOk());
  }

  // Polls until `count` calls are answered; statuses by tag.
  static std::map<uint64_t, absl::Status> Answers(Storage& storage,
                                                  size_t count,
                                                  size_t at_once = 5) {
    std::map<uint64_t, absl::Status> statuses;
    std::vector<Completion> answers(at_once);
    while (statuses.size() < count) {
      const size_t polled = storage.Poll(answers);
      EXPECT_LE(polled, at_once);
      for (size_t i = 0; i < polled; ++i) {
        const bool is_new = statuses
                                .insert({static_cast<uint64_t>(answers[i].tag),
                                         answers[i].status})
                                .second;
        EXPECT_TRUE(is_new) << "answered twice";
      }
      if (polled == 0) storage.WaitForCompletion(10);
    }
    return statuses;
  }

  std::unique_ptr<StorageWorld> world_;
  std::unique_ptr<Storage> storage_;
  std::unique_ptr<Blocking> io_;
};

}  // namespace holdfast::tests

#endif  // HOLDFAST_TESTS_CONTRACT_STORAGE_SUITE_H_
