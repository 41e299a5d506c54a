// What the C functions refuse, with which code and words, and that nothing of
// it ends the process.

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "ckpt/c/holdfast_ckpt.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_dir.h"

namespace holdfast::ckpt {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StrEq;
using tests::TempDir;

#define ASSERT_OK(call) ASSERT_EQ((call), HF_CKPT_OK) << hf_ckpt_last_error()
#define EXPECT_OK(call) EXPECT_EQ((call), HF_CKPT_OK) << hf_ckpt_last_error()
#define EXPECT_REFUSED(call, code, words) \
  EXPECT_EQ((call), (code));              \
  EXPECT_THAT(hf_ckpt_last_error(), HasSubstr(words))

constexpr int64_t kZero[4] = {0, 0, 0, 0};

class CRefusalsTest : public testing::Test {
 protected:
  void SetUp() override {
    hf_ckpt_group* group = nullptr;
    ASSERT_OK(hf_ckpt_group_single(&group));
    ASSERT_OK(hf_ckpt_new(dir_.path().c_str(), group, nullptr, &ckpt_));
  }
  void TearDown() override { hf_ckpt_free(ckpt_); }

  uint32_t Item(const char* name, std::vector<int64_t> shape) {
    uint32_t item = 0;
    EXPECT_OK(hf_ckpt_add_item(ckpt_, name, "weight", HF_CKPT_F32,
                               static_cast<int32_t>(shape.size()), shape.data(),
                               &item));
    return item;
  }

  TempDir dir_;
  hf_ckpt* ckpt_ = nullptr;
  alignas(4096) char pages_[5 * 4096];
};

TEST_F(CRefusalsTest, NullIsRefusedEverywhereAndFreedQuietly) {
  double speed = 0;
  int32_t ready = 0;
  uint32_t number = 0;
  uint64_t count = 0;
  const char* text = nullptr;
  const hf_ckpt_attribute* attributes = nullptr;
  hf_ckpt_group* group = nullptr;
  hf_ckpt_listener* listener = nullptr;
  hf_ckpt* other = nullptr;
  hf_ckpt_save_report report = HF_CKPT_SAVE_REPORT_INIT;
  hf_ckpt_counters counters = HF_CKPT_COUNTERS_INIT;
  hf_ckpt_list* list = nullptr;
  hf_ckpt_reader* reader = nullptr;
  hf_ckpt_reader_info info = HF_CKPT_READER_INFO_INIT;
  hf_ckpt_item_info item = HF_CKPT_ITEM_INFO_INIT;
  hf_ckpt_list_entry entry = HF_CKPT_LIST_ENTRY_INIT;
  hf_ckpt_box_read box = HF_CKPT_BOX_READ_INIT;
  const hf_ckpt_code codes[] = {
      hf_ckpt_alloc(1, nullptr),
      hf_ckpt_options_new(nullptr),
      hf_ckpt_options_set(nullptr, "a", "b"),
      hf_ckpt_measure_device(nullptr, &speed, &speed),
      hf_ckpt_measure_device("/tmp", nullptr, &speed),
      hf_ckpt_measure_device("/tmp", &speed, nullptr),
      hf_ckpt_group_single(nullptr),
      hf_ckpt_group_threads(2, nullptr),
      hf_ckpt_group_local(nullptr, 0, 1, &group),
      hf_ckpt_group_local("/tmp", 0, 1, nullptr),
      hf_ckpt_listen(nullptr, &listener),
      hf_ckpt_listen("127.0.0.1", nullptr),
      hf_ckpt_group_tcp(nullptr, 0, 1, &text, "secret", &group),
      hf_ckpt_group_mpi(0, nullptr),
      hf_ckpt_group_transport(nullptr, &group),
      hf_ckpt_new(nullptr, group, nullptr, &other),
      hf_ckpt_new("/tmp", nullptr, nullptr, &other),
      hf_ckpt_add_item(nullptr, "a", "b", HF_CKPT_F32, 1, kZero, &number),
      hf_ckpt_add_item(ckpt_, nullptr, "b", HF_CKPT_F32, 1, kZero, &number),
      hf_ckpt_add_item(ckpt_, "a", nullptr, HF_CKPT_F32, 1, kZero, &number),
      hf_ckpt_add_item(ckpt_, "a", "b", HF_CKPT_F32, 1, nullptr, &number),
      hf_ckpt_add_item(ckpt_, "a", "b", HF_CKPT_F32, 1, kZero, nullptr),
      hf_ckpt_add_buffer(nullptr, 0, kZero, kZero, pages_, 4096, 0, &number),
      hf_ckpt_add_run(nullptr, 0, kZero, kZero, 0, 1, pages_, 4096, 0, &number),
      hf_ckpt_add_region(nullptr, pages_, 4096),
      hf_ckpt_add_region(ckpt_, nullptr, 4096),
      hf_ckpt_open(nullptr),
      hf_ckpt_load(nullptr, nullptr, nullptr),
      hf_ckpt_loaded_attribute(nullptr, "a", &text),
      hf_ckpt_loaded_attribute(ckpt_, nullptr, &text),
      hf_ckpt_loaded_attribute(ckpt_, "a", nullptr),
      hf_ckpt_loaded_attributes(ckpt_, nullptr, &count),
      hf_ckpt_loaded_attributes(nullptr, &attributes, &count),
      hf_ckpt_begin_save(nullptr, 1, nullptr, 0),
      hf_ckpt_begin_save(ckpt_, 1, nullptr, 3),
      hf_ckpt_before_write(nullptr, 0, 0, 0),
      hf_ckpt_poll_save(nullptr, &report, &ready),
      hf_ckpt_poll_save(ckpt_, nullptr, &ready),
      hf_ckpt_poll_save(ckpt_, &report, nullptr),
      hf_ckpt_wait_save(nullptr, 0, &report, &ready),
      hf_ckpt_get_counters(nullptr, &counters),
      hf_ckpt_get_counters(ckpt_, nullptr),
      hf_ckpt_close(nullptr),
      hf_ckpt_list_open(nullptr, &list),
      hf_ckpt_list_open("/tmp", nullptr),
      hf_ckpt_list_get(nullptr, 0, &entry),
      hf_ckpt_reader_open(nullptr, &reader),
      hf_ckpt_reader_open("/tmp", nullptr),
      hf_ckpt_reader_get_info(nullptr, &info),
      hf_ckpt_reader_item(nullptr, 0, &item),
      hf_ckpt_reader_find(nullptr, "a", "b", &count),
      hf_ckpt_reader_attributes(nullptr, &attributes, &count),
      hf_ckpt_reader_read(nullptr, &box, 1),
  };
  for (size_t i = 0; i < std::size(codes); ++i) {
    EXPECT_EQ(codes[i], HF_CKPT_INVALID_ARGUMENT) << "call " << i;
  }
  EXPECT_EQ(hf_ckpt_save_in_flight(nullptr), 0);
  EXPECT_EQ(hf_ckpt_group_rank(nullptr), -1);
  EXPECT_EQ(hf_ckpt_group_size(nullptr), -1);
  EXPECT_EQ(hf_ckpt_list_size(nullptr), 0u);
  hf_ckpt_free(nullptr);
  hf_ckpt_group_free(nullptr);
  hf_ckpt_listener_free(nullptr);
  EXPECT_STREQ(hf_ckpt_listener_address(nullptr), "");
  hf_ckpt_options_free(nullptr);
  hf_ckpt_reader_free(nullptr);
  hf_ckpt_list_free(nullptr);
  hf_ckpt_dealloc(nullptr);
  EXPECT_REFUSED(hf_ckpt_measure_device("/nonexistent", &speed, &speed),
                 HF_CKPT_NOT_FOUND, "/nonexistent");
}

TEST(CErrorsTest, TheNumbersAreThoseOfTheStatusCodes) {
  EXPECT_EQ(hf_ckpt_api_version(), HF_CKPT_API_VERSION);
  EXPECT_THAT(hf_ckpt_version(), HasSubstr("."));
  EXPECT_THAT(hf_ckpt_code_name(HF_CKPT_NOT_FOUND), StrEq("NOT_FOUND"));
  EXPECT_THAT(hf_ckpt_code_name(HF_CKPT_DATA_LOSS), StrEq("DATA_LOSS"));
  EXPECT_THAT(hf_ckpt_code_name(99), StrEq("UNKNOWN"));
  EXPECT_THAT(hf_ckpt_code_name(-1), StrEq("UNKNOWN"));
}

TEST(CErrorsTest, TheLastErrorIsTheThreadsOwn) {
  EXPECT_EQ(hf_ckpt_open(nullptr), HF_CKPT_INVALID_ARGUMENT);
  EXPECT_THAT(hf_ckpt_last_error(), StrEq("hf_ckpt_open: ckpt is null"));
  std::thread([] { EXPECT_THAT(hf_ckpt_last_error(), StrEq("")); }).join();
}

TEST(COptionsTest, NamesAndValuesAreChecked) {
  hf_ckpt_options* options = nullptr;
  ASSERT_OK(hf_ckpt_options_new(&options));
  EXPECT_OK(hf_ckpt_options_set(options, "keep_last", "5"));
  EXPECT_OK(hf_ckpt_options_set(options, "keep_last", "all"));
  EXPECT_OK(hf_ckpt_options_set(options, "direct_io", "false"));
  EXPECT_OK(hf_ckpt_options_set(options, "raw_write_bytes_per_s", "2.5e9"));
  EXPECT_REFUSED(hf_ckpt_options_set(options, "keep_first", "5"),
                 HF_CKPT_INVALID_ARGUMENT, "there are keep_last, keep_every");
  for (const char* bad : {"", "x", "3x", "99999999999", "3.5"}) {
    EXPECT_REFUSED(hf_ckpt_options_set(options, "keep_last", bad),
                   HF_CKPT_INVALID_ARGUMENT, "expected a whole number");
  }
  EXPECT_REFUSED(hf_ckpt_options_set(options, "arena_bytes", "-1"),
                 HF_CKPT_INVALID_ARGUMENT, "'-1'");
  EXPECT_REFUSED(hf_ckpt_options_set(options, "direct_io", "1"),
                 HF_CKPT_INVALID_ARGUMENT, "true or false");
  EXPECT_REFUSED(hf_ckpt_options_set(options, "raw_write_bytes_per_s", "nan"),
                 HF_CKPT_INVALID_ARGUMENT, "a number from 0 up");
  hf_ckpt_options_free(options);
}

TEST(CGroupsTest, RanksThatCannotBeAreRefused) {
  hf_ckpt_group* group = nullptr;
  EXPECT_REFUSED(hf_ckpt_group_threads(0, &group), HF_CKPT_INVALID_ARGUMENT,
                 "0 ranks");
  EXPECT_REFUSED(hf_ckpt_group_local("/tmp", 2, 2, &group),
                 HF_CKPT_INVALID_ARGUMENT, "rank 2 of 2");
  hf_ckpt_transport transport = HF_CKPT_TRANSPORT_INIT;
  transport.size = 1;
  EXPECT_REFUSED(hf_ckpt_group_transport(&transport, &group),
                 HF_CKPT_INVALID_ARGUMENT, "send or poll");
  transport.struct_bytes = 8;
  EXPECT_REFUSED(hf_ckpt_group_transport(&transport, &group),
                 HF_CKPT_INVALID_ARGUMENT, "struct_bytes is 8");
  // MPI is not started here, or not built in.
  const hf_ckpt_code code = hf_ckpt_group_mpi(0, &group);
  EXPECT_TRUE(code == HF_CKPT_FAILED_PRECONDITION ||
              code == HF_CKPT_UNIMPLEMENTED)
      << code;
}

TEST_F(CRefusalsTest, ItemsThatCannotBe) {
  uint32_t item = 0;
  const int64_t shape[5] = {2, 3, 4, 5, 6};
  const int64_t huge[2] = {int64_t{1} << 40, int64_t{1} << 40};
  const auto add = [&](const char* name, int32_t dtype, int32_t dimensions,
                       const int64_t* lengths) {
    return hf_ckpt_add_item(ckpt_, name, "weight", dtype, dimensions, lengths,
                            &item);
  };
  EXPECT_REFUSED(add("x", HF_CKPT_F32, 5, shape), HF_CKPT_INVALID_ARGUMENT,
                 "5 dimensions");
  EXPECT_REFUSED(add("x", HF_CKPT_F32, -1, shape), HF_CKPT_INVALID_ARGUMENT,
                 "-1 dimensions");
  EXPECT_REFUSED(add("x", 0, 1, shape), HF_CKPT_INVALID_ARGUMENT, "dtype 0");
  EXPECT_REFUSED(add("x", 257, 1, shape), HF_CKPT_INVALID_ARGUMENT,
                 "dtype 257");
  EXPECT_REFUSED(add("x", HF_CKPT_F32, 1, kZero), HF_CKPT_INVALID_ARGUMENT,
                 "0 elements");
  EXPECT_REFUSED(add("x", HF_CKPT_F32, 2, huge), HF_CKPT_INVALID_ARGUMENT,
                 "2^56");
  EXPECT_REFUSED(add("", HF_CKPT_F32, 1, shape), HF_CKPT_INVALID_ARGUMENT,
                 "empty");
  EXPECT_OK(add("x", HF_CKPT_F32, 2, shape));
  EXPECT_OK(add("x", HF_CKPT_F32, 2, shape));  // again, and the same
  EXPECT_EQ(item, 0u);
  EXPECT_REFUSED(add("x", HF_CKPT_BF16, 2, shape), HF_CKPT_INVALID_ARGUMENT,
                 "another dtype or shape");
}

TEST_F(CRefusalsTest, BuffersThatCannotBe) {
  const uint32_t item = Item("x", {6, 4});
  const int64_t whole[2] = {6, 4};
  const int64_t over[2] = {6, 5};
  const int64_t below[2] = {-1, 0};
  const auto add = [&](const int64_t* first, const int64_t* count, void* memory,
                       uint64_t bytes, int32_t placement) {
    return hf_ckpt_add_buffer(ckpt_, item, first, count, memory, bytes,
                              placement, nullptr);
  };
  const auto run = [&](int64_t first, int64_t count) {
    return hf_ckpt_add_run(ckpt_, item, kZero, whole, first, count, pages_,
                           sizeof(pages_), HF_CKPT_STAGED, nullptr);
  };
  EXPECT_REFUSED(
      hf_ckpt_add_buffer(ckpt_, 9, kZero, whole, pages_, 4096, 0, nullptr),
      HF_CKPT_NOT_FOUND, "no item 9");
  EXPECT_REFUSED(add(kZero, over, pages_, 4096, 1), HF_CKPT_INVALID_ARGUMENT,
                 "[0:6, 0:5] is not inside of [0:6, 0:4]");
  EXPECT_REFUSED(add(below, whole, pages_, 4096, 1), HF_CKPT_INVALID_ARGUMENT,
                 "not inside");
  EXPECT_REFUSED(add(kZero, whole, pages_, 95, HF_CKPT_STAGED),
                 HF_CKPT_INVALID_ARGUMENT,
                 "95 bytes of memory for 24 elements");
  EXPECT_REFUSED(add(kZero, whole, pages_, 4096, 2), HF_CKPT_INVALID_ARGUMENT,
                 "placement 2");
  EXPECT_REFUSED(add(nullptr, whole, pages_, 4096, 1), HF_CKPT_INVALID_ARGUMENT,
                 "null");
  EXPECT_REFUSED(add(kZero, whole, nullptr, 4096, 1), HF_CKPT_INVALID_ARGUMENT,
                 "null");
  EXPECT_REFUSED(run(-1, 3), HF_CKPT_INVALID_ARGUMENT, "not inside");
  EXPECT_REFUSED(run(23, 2), HF_CKPT_INVALID_ARGUMENT, "not inside");
  EXPECT_REFUSED(run(INT64_MAX, INT64_MAX), HF_CKPT_INVALID_ARGUMENT,
                 "not inside");
  // In place: aligned, and room for the rest of the last page.
  EXPECT_REFUSED(add(kZero, whole, pages_ + 64, 4096, HF_CKPT_IN_PLACE),
                 HF_CKPT_INVALID_ARGUMENT, "hf_ckpt_alloc");
  EXPECT_REFUSED(add(kZero, whole, pages_, 96, HF_CKPT_IN_PLACE),
                 HF_CKPT_INVALID_ARGUMENT, "HF_CKPT_STAGED");
}

TEST_F(CRefusalsTest, MemoryThatTwoWouldHave) {
  const uint32_t x = Item("x", {1024});
  const uint32_t y = Item("y", {1025});
  const int64_t kilo = 1024;
  const int64_t more = 1025;
  const auto add = [&](uint32_t item, const int64_t* count, int page) {
    return hf_ckpt_add_buffer(ckpt_, item, kZero, count, pages_ + 4096 * page,
                              sizeof(pages_) - 4096 * page, HF_CKPT_IN_PLACE,
                              nullptr);
  };
  EXPECT_OK(add(y, &more, 1));  // pages 1 and 2
  EXPECT_REFUSED(add(x, &kilo, 1), HF_CKPT_INVALID_ARGUMENT,
                 "buffer of 'y' (weight)");
  EXPECT_REFUSED(add(x, &kilo, 2), HF_CKPT_INVALID_ARGUMENT, "shares pages");
  EXPECT_REFUSED(add(y, &more, 0), HF_CKPT_INVALID_ARGUMENT, "shares pages");
  EXPECT_REFUSED(hf_ckpt_add_region(ckpt_, pages_, sizeof(pages_)),
                 HF_CKPT_INVALID_ARGUMENT, "add a region before");
  EXPECT_REFUSED(hf_ckpt_add_region(ckpt_, pages_ + 1, 4096),
                 HF_CKPT_INVALID_ARGUMENT, "hf_ckpt_alloc");
  EXPECT_REFUSED(hf_ckpt_add_region(ckpt_, pages_, 100),
                 HF_CKPT_INVALID_ARGUMENT, "100 bytes");
  EXPECT_OK(hf_ckpt_add_region(ckpt_, pages_ + 3 * 4096, 2 * 4096));
  EXPECT_OK(add(x, &kilo, 4));  // inside of it
  EXPECT_REFUSED(hf_ckpt_add_region(ckpt_, pages_ + 4 * 4096, 4096),
                 HF_CKPT_INVALID_ARGUMENT, "overlap");
}

TEST_F(CRefusalsTest, CallsInAnotherOrder) {
  const uint32_t x = Item("x", {4});
  const int64_t four = 4;
  hf_ckpt_save_report report = HF_CKPT_SAVE_REPORT_INIT;
  hf_ckpt_counters counters = HF_CKPT_COUNTERS_INIT;
  int32_t ready = 0;
  uint32_t buffer = 0;
  EXPECT_REFUSED(hf_ckpt_load(ckpt_, nullptr, nullptr),
                 HF_CKPT_FAILED_PRECONDITION, "has not been opened");
  EXPECT_REFUSED(hf_ckpt_close(ckpt_), HF_CKPT_FAILED_PRECONDITION,
                 "has not been opened");
  EXPECT_REFUSED(hf_ckpt_get_counters(ckpt_, &counters),
                 HF_CKPT_FAILED_PRECONDITION, "not open");
  EXPECT_OK(hf_ckpt_add_buffer(ckpt_, x, kZero, &four, pages_, 4096,
                               HF_CKPT_IN_PLACE, &buffer));
  EXPECT_OK(hf_ckpt_open(ckpt_));
  EXPECT_REFUSED(hf_ckpt_open(ckpt_), HF_CKPT_FAILED_PRECONDITION, "open");
  EXPECT_REFUSED(hf_ckpt_begin_save(ckpt_, 1, nullptr, 0),
                 HF_CKPT_FAILED_PRECONDITION, "hf_ckpt_load comes first");
  EXPECT_REFUSED(hf_ckpt_add_region(ckpt_, pages_ + 4096, 4096),
                 HF_CKPT_FAILED_PRECONDITION, "open already");
  EXPECT_OK(hf_ckpt_load(ckpt_, nullptr, nullptr));
  EXPECT_REFUSED(hf_ckpt_load(ckpt_, nullptr, nullptr),
                 HF_CKPT_FAILED_PRECONDITION, "loaded already");
  // No save yet: nothing to report.
  EXPECT_OK(hf_ckpt_poll_save(ckpt_, &report, &ready));
  EXPECT_EQ(ready, 0);
  EXPECT_OK(hf_ckpt_wait_save(ckpt_, -1, &report, &ready));
  EXPECT_EQ(ready, 0);
  EXPECT_OK(hf_ckpt_begin_save(ckpt_, 5, nullptr, 0));
  EXPECT_OK(hf_ckpt_wait_save(ckpt_, -1, &report, &ready));
  EXPECT_EQ(ready, 1);
  EXPECT_REFUSED(hf_ckpt_begin_save(ckpt_, 4, nullptr, 0),
                 HF_CKPT_INVALID_ARGUMENT, "steps never go back");
  const hf_ckpt_attribute nameless = {"", "x"};
  EXPECT_REFUSED(hf_ckpt_begin_save(ckpt_, 6, &nameless, 1),
                 HF_CKPT_INVALID_ARGUMENT, "attribute 0");
  const std::string large(16 << 20, 'x');
  const hf_ckpt_attribute too_large[] = {{"a", "b"}, {"c", large.c_str()}};
  EXPECT_REFUSED(hf_ckpt_begin_save(ckpt_, 6, too_large, 2),
                 HF_CKPT_INVALID_ARGUMENT, "at most 16777216");
  EXPECT_REFUSED(hf_ckpt_before_write(ckpt_, 1, 0, 1), HF_CKPT_INVALID_ARGUMENT,
                 "no buffer 1");
  EXPECT_REFUSED(hf_ckpt_before_write(ckpt_, buffer, 10, UINT64_MAX),
                 HF_CKPT_INVALID_ARGUMENT, "has 16 bytes");
  EXPECT_OK(hf_ckpt_close(ckpt_));
  EXPECT_REFUSED(hf_ckpt_close(ckpt_), HF_CKPT_FAILED_PRECONDITION, "closed");
  EXPECT_REFUSED(hf_ckpt_begin_save(ckpt_, 7, nullptr, 0),
                 HF_CKPT_FAILED_PRECONDITION, "closed");
}

TEST_F(CRefusalsTest, ARunThatIsNotThereFailsTheOpening) {
  hf_ckpt_free(ckpt_);
  hf_ckpt_group* group = nullptr;
  ASSERT_OK(hf_ckpt_group_single(&group));
  ASSERT_OK(hf_ckpt_new("/nonexistent/run", group, nullptr, &ckpt_));
  const uint32_t x = Item("x", {4});
  const int64_t four = 4;
  EXPECT_OK(hf_ckpt_add_buffer(ckpt_, x, kZero, &four, pages_, 16,
                               HF_CKPT_STAGED, nullptr));
  EXPECT_REFUSED(hf_ckpt_open(ckpt_), HF_CKPT_NOT_FOUND, "/nonexistent/run");
  EXPECT_REFUSED(hf_ckpt_open(ckpt_), HF_CKPT_FAILED_PRECONDITION,
                 "opening has failed");
}

hf_ckpt_code Refuse(void*, const hf_ckpt_attribute* attributes, uint64_t count,
                    char* message, uint64_t message_bytes) {
  EXPECT_EQ(count, 1u);
  EXPECT_THAT(attributes[0].name, StrEq("lr"));
  std::memset(message, 'n', message_bytes);  // no zero at its end
  return HF_CKPT_FAILED_PRECONDITION;
}

// Saves one item as step 1.
void SaveOne(const std::string& dir, float value) {
  hf_ckpt_group* group = nullptr;
  hf_ckpt* ckpt = nullptr;
  uint32_t item = 0;
  const int64_t four = 4;
  float values[4] = {value, value, value, value};
  const hf_ckpt_attribute attribute = {"lr", "0.1"};
  hf_ckpt_save_report report = HF_CKPT_SAVE_REPORT_INIT;
  int32_t ready = 0;
  ASSERT_OK(hf_ckpt_group_single(&group));
  ASSERT_OK(hf_ckpt_new(dir.c_str(), group, nullptr, &ckpt));
  ASSERT_OK(
      hf_ckpt_add_item(ckpt, "x", "weight", HF_CKPT_F32, 1, &four, &item));
  ASSERT_OK(hf_ckpt_add_buffer(ckpt, item, kZero, &four, values, 16,
                               HF_CKPT_STAGED, nullptr));
  ASSERT_OK(hf_ckpt_open(ckpt));
  ASSERT_OK(hf_ckpt_load(ckpt, nullptr, nullptr));
  ASSERT_OK(hf_ckpt_begin_save(ckpt, 1, &attribute, 1));
  ASSERT_OK(hf_ckpt_wait_save(ckpt, -1, &report, &ready));
  ASSERT_EQ(report.outcome, HF_CKPT_COMMITTED) << report.message;
  ASSERT_OK(hf_ckpt_close(ckpt));
  hf_ckpt_free(ckpt);
}

TEST_F(CRefusalsTest, ACallerMayRefuseACheckpointOnceAndThenClose) {
  SaveOne(dir_.path(), 2);
  const uint32_t x = Item("x", {4});
  const int64_t four = 4;
  float values[4] = {};
  EXPECT_OK(hf_ckpt_add_buffer(ckpt_, x, kZero, &four, values, 16,
                               HF_CKPT_STAGED, nullptr));
  ASSERT_OK(hf_ckpt_open(ckpt_));
  hf_ckpt_load_request request = HF_CKPT_LOAD_REQUEST_INIT;
  request.resume = 17;
  EXPECT_REFUSED(hf_ckpt_load(ckpt_, &request, nullptr),
                 HF_CKPT_INVALID_ARGUMENT, "no way 17");
  request.resume = HF_CKPT_RESUME_AUTO;
  request.validate = Refuse;
  EXPECT_REFUSED(hf_ckpt_load(ckpt_, &request, nullptr),
                 HF_CKPT_FAILED_PRECONDITION, "nnnn");
  EXPECT_REFUSED(hf_ckpt_load(ckpt_, &request, nullptr),
                 HF_CKPT_FAILED_PRECONDITION, "close it");
  EXPECT_EQ(values[0], 0);
  EXPECT_OK(hf_ckpt_close(ckpt_));
}

TEST_F(CRefusalsTest, AStructOfAnotherVersionIsFilledAsFarAsItGoes) {
  SaveOne(dir_.path(), 2);
  struct {
    hf_ckpt_load_report report;
    uint64_t newer[2];
  } longer = {HF_CKPT_LOAD_REPORT_INIT, {77, 78}};
  longer.report.struct_bytes = sizeof(longer);
  const uint32_t x = Item("x", {4});
  const int64_t four = 4;
  float values[4] = {};
  EXPECT_OK(hf_ckpt_add_buffer(ckpt_, x, kZero, &four, values, 16,
                               HF_CKPT_STAGED, nullptr));
  ASSERT_OK(hf_ckpt_open(ckpt_));
  ASSERT_OK(hf_ckpt_load(ckpt_, nullptr, &longer.report));
  EXPECT_EQ(longer.report.struct_bytes, sizeof(longer));
  EXPECT_EQ(longer.report.step, 1);
  EXPECT_EQ(longer.newer[0], 77u);
  EXPECT_EQ(values[3], 2);
  hf_ckpt_save_report report = {};
  int32_t ready = 0;
  EXPECT_REFUSED(hf_ckpt_poll_save(ckpt_, &report, &ready),
                 HF_CKPT_INVALID_ARGUMENT, "_INIT macro");
}

// Items of other kinds stay as they were, staged or not.
TEST(CInitTest, WeightsAloneLeaveTheRestAsItWas) {
  TempDir from;
  TempDir to;
  SaveOne(from.path(), 9);
  hf_ckpt_group* group = nullptr;
  hf_ckpt* ckpt = nullptr;
  uint32_t item = 0;
  const int64_t four = 4;
  float weights[4] = {};
  float moments[4] = {5, 6, 7, 8};
  ASSERT_OK(hf_ckpt_group_single(&group));
  ASSERT_OK(hf_ckpt_new(to.path().c_str(), group, nullptr, &ckpt));
  ASSERT_OK(
      hf_ckpt_add_item(ckpt, "x", "weight", HF_CKPT_F32, 1, &four, &item));
  ASSERT_OK(hf_ckpt_add_buffer(ckpt, item, kZero, &four, weights, 16,
                               HF_CKPT_STAGED, nullptr));
  ASSERT_OK(
      hf_ckpt_add_item(ckpt, "x", "moment", HF_CKPT_F32, 1, &four, &item));
  ASSERT_OK(hf_ckpt_add_buffer(ckpt, item, kZero, &four, moments, 16,
                               HF_CKPT_STAGED, nullptr));
  ASSERT_OK(hf_ckpt_open(ckpt));
  hf_ckpt_load_request request = HF_CKPT_LOAD_REQUEST_INIT;
  request.init_from = from.path().c_str();
  request.init_weights_only = 1;
  hf_ckpt_load_report report = HF_CKPT_LOAD_REPORT_INIT;
  ASSERT_OK(hf_ckpt_load(ckpt, &request, &report));
  EXPECT_EQ(report.from_init, 1);
  EXPECT_EQ(weights[2], 9);
  EXPECT_EQ(moments[3], 8);
  EXPECT_OK(hf_ckpt_begin_save(ckpt, 0, nullptr, 0));  // below init_from's step
  hf_ckpt_free(ckpt);
}

// Large units are read straight to their place; the last one has a block's rest
// behind it that is not the caller's. Whole blocks, some more, a piece of one.
TEST(CReaderTest, FillsMemoryThatEndsWithTheBoxAndNothingBehindIt) {
  TempDir dir;
  const int64_t lengths[] = {300'001, 4096 * 64, 3000, (1 << 20) + 5};
  std::vector<uint8_t> saved(2 << 20);
  for (size_t i = 0; i < saved.size(); ++i) saved[i] = i * 7 + i / 251;
  hf_ckpt_group* group = nullptr;
  hf_ckpt* ckpt = nullptr;
  ASSERT_OK(hf_ckpt_group_single(&group));
  ASSERT_OK(hf_ckpt_new(dir.path().c_str(), group, nullptr, &ckpt));
  for (int i = 0; i < 4; ++i) {
    uint32_t item = 0;
    ASSERT_OK(hf_ckpt_add_item(ckpt, std::to_string(i).c_str(), "weight",
                               HF_CKPT_U8, 1, &lengths[i], &item));
    ASSERT_OK(hf_ckpt_add_buffer(ckpt, item, kZero, &lengths[i],
                                 saved.data() + i, lengths[i], HF_CKPT_STAGED,
                                 nullptr));
  }
  hf_ckpt_save_report report = HF_CKPT_SAVE_REPORT_INIT;
  int32_t ready = 0;
  ASSERT_OK(hf_ckpt_open(ckpt));
  ASSERT_OK(hf_ckpt_load(ckpt, nullptr, nullptr));
  ASSERT_OK(hf_ckpt_begin_save(ckpt, 1, nullptr, 0));
  ASSERT_OK(hf_ckpt_wait_save(ckpt, -1, &report, &ready));
  ASSERT_EQ(report.outcome, HF_CKPT_COMMITTED) << report.message;
  hf_ckpt_free(ckpt);

  hf_ckpt_reader* reader = nullptr;
  ASSERT_OK(hf_ckpt_reader_open(dir.path().c_str(), &reader));
  for (const size_t shift : {0, 8}) {  // on a page, and not
    for (int i = 0; i < 4; ++i) {
      void* pages = nullptr;
      ASSERT_OK(hf_ckpt_alloc(2 << 20, &pages));
      auto* const memory = static_cast<uint8_t*>(pages) + shift;
      std::memset(pages, 0xee, 2 << 20);
      hf_ckpt_box_read box = HF_CKPT_BOX_READ_INIT;
      box.item = i;
      box.memory = memory;
      box.memory_bytes = lengths[i];
      EXPECT_OK(hf_ckpt_reader_read(reader, &box, 1));
      EXPECT_EQ(std::memcmp(memory, saved.data() + i, lengths[i]), 0) << i;
      for (int64_t at = lengths[i]; at < lengths[i] + 4096; ++at) {
        ASSERT_EQ(memory[at], 0xee) << i << " " << at;
      }
      hf_ckpt_dealloc(pages);
    }
  }
  // All in one call, into memory that ends where they do.
  std::vector<std::vector<uint8_t>> memory;
  std::vector<hf_ckpt_box_read> boxes(4, HF_CKPT_BOX_READ_INIT);
  for (int i = 0; i < 4; ++i) {
    memory.emplace_back(lengths[i]);
    boxes[i].item = i;
    boxes[i].memory = memory[i].data();
    boxes[i].memory_bytes = lengths[i];
  }
  EXPECT_OK(hf_ckpt_reader_read(reader, boxes.data(), 4));
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(std::memcmp(memory[i].data(), saved.data() + i, lengths[i]), 0);
  }
  hf_ckpt_reader_free(reader);
}

TEST(CReaderTest, RefusesWhatIsNotThereAndFindsDamage) {
  TempDir dir;
  hf_ckpt_reader* reader = nullptr;
  EXPECT_REFUSED(hf_ckpt_reader_open("/nonexistent", &reader),
                 HF_CKPT_NOT_FOUND, "/nonexistent");
  EXPECT_EQ(hf_ckpt_reader_open(dir.path().c_str(), &reader),
            HF_CKPT_NOT_FOUND);
  SaveOne(dir.path(), 3);
  EXPECT_REFUSED(hf_ckpt_reader_open((dir.path() + "@x").c_str(), &reader),
                 HF_CKPT_INVALID_ARGUMENT, "@x");
  ASSERT_OK(hf_ckpt_reader_open((dir.path() + "@1").c_str(), &reader));
  uint64_t index = 0;
  EXPECT_REFUSED(hf_ckpt_reader_find(reader, "x", "moment", &index),
                 HF_CKPT_NOT_FOUND, "'x' (moment)");
  ASSERT_OK(hf_ckpt_reader_find(reader, "x", "weight", &index));
  hf_ckpt_item_info item = HF_CKPT_ITEM_INFO_INIT;
  EXPECT_REFUSED(hf_ckpt_reader_item(reader, 1, &item), HF_CKPT_NOT_FOUND,
                 "no item 1 of 1");
  ASSERT_OK(hf_ckpt_reader_item(reader, 0, &item));
  EXPECT_EQ(item.bytes, 16u);
  float values[4] = {};
  hf_ckpt_box_read boxes[2] = {HF_CKPT_BOX_READ_INIT, HF_CKPT_BOX_READ_INIT};
  for (int i = 0; i < 2; ++i) {
    boxes[i].first[0] = 1 + i;
    boxes[i].count[0] = 1;
    boxes[i].memory = values + 1 + i;
    boxes[i].memory_bytes = 4;
  }
  ASSERT_OK(hf_ckpt_reader_read(reader, boxes, 2));
  EXPECT_THAT(values, testing::ElementsAre(0, 3, 3, 0));
  boxes[1].memory_bytes = 3;
  EXPECT_REFUSED(hf_ckpt_reader_read(reader, boxes, 2),
                 HF_CKPT_INVALID_ARGUMENT, "4 are needed");
  boxes[1].first[0] = 4;
  EXPECT_REFUSED(hf_ckpt_reader_read(reader, boxes, 2),
                 HF_CKPT_INVALID_ARGUMENT, "not inside");
  boxes[1].item = 1;
  EXPECT_REFUSED(hf_ckpt_reader_read(reader, boxes, 2), HF_CKPT_NOT_FOUND,
                 "no item 1");
  hf_ckpt_reader_info info = HF_CKPT_READER_INFO_INIT;
  ASSERT_OK(hf_ckpt_reader_get_info(reader, &info));
  for (const auto& entry : std::filesystem::directory_iterator(info.path)) {
    if (entry.path().extension() != ".hf") continue;
    std::fstream file(entry.path(),
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(4096 + 5);
    file.put('\x55');
  }
  EXPECT_REFUSED(hf_ckpt_reader_read(reader, boxes, 1), HF_CKPT_DATA_LOSS,
                 "crc32c");
  hf_ckpt_reader_free(reader);
}

}  // namespace
}  // namespace holdfast::ckpt
