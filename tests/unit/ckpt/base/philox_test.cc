// The known answers of Random123's kat_vectors for philox4x32-10.

#include "ckpt/base/philox.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace holdfast::ckpt {
namespace {

using ::testing::ElementsAre;

TEST(PhiloxTest, GivesThePublishedAnswers) {
  EXPECT_THAT(Philox({0, 0, 0, 0}, {0, 0}),
              ElementsAre(0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
  EXPECT_THAT(Philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
                     {0xffffffff, 0xffffffff}),
              ElementsAre(0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
  EXPECT_THAT(Philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
                     {0xa4093822, 0x299f31d0}),
              ElementsAre(0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1));
}

}  // namespace
}  // namespace holdfast::ckpt
