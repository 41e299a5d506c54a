// Pickles are written out here opcode by opcode, so that what is read can be
// followed by eye; what real picklers write is in tests/golden.

#include "tools/convert/dcp/pickle.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace holdfast::tools {
namespace {

using ::testing::HasSubstr;

std::string Bytes(std::initializer_list<int> values) {
  std::string bytes;
  for (const int value : values) bytes.push_back(static_cast<char>(value));
  return bytes;
}

// PROTO 4, `body`, STOP.
std::string Protocol4(const std::string& body) {
  return Bytes({0x80, 4}) + body + ".";
}

std::string Short(std::string_view text) {
  return Bytes({0x8c, static_cast<int>(text.size())}) + std::string(text);
}

absl::StatusOr<Pickle> Parse(const std::string& bytes,
                             PickleOptions options = {}) {
  return Pickle::Parse(bytes, options);
}

void ExpectRefused(const std::string& bytes, const std::string& words,
                   PickleOptions options = {}) {
  const absl::StatusOr<Pickle> pickle = Parse(bytes, std::move(options));
  ASSERT_FALSE(pickle.ok()) << words;
  EXPECT_EQ(pickle.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(pickle.status().message()), HasSubstr(words));
}

TEST(PickleTest, NumbersOfEveryWidthKeepTheirSign) {
  struct Case {
    std::string bytes;
    int64_t value;
  };
  const Case cases[] = {
      {Bytes({'K', 0xff}), 255},
      {Bytes({'M', 0xff, 0xff}), 65535},
      {Bytes({'J', 0xff, 0xff, 0xff, 0xff}), -1},
      {Bytes({0x8a, 0}), 0},
      {Bytes({0x8a, 1, 0x80}), -128},
      {Bytes({0x8a, 5, 0, 0, 0, 0, 1}), int64_t{1} << 32},
      {Bytes({0x8a, 8, 0, 0, 0, 0, 0, 0, 0, 0x80}), INT64_MIN},
  };
  for (const Case& one : cases) {
    const std::string bytes = Protocol4(one.bytes);
    const auto pickle = Parse(bytes);
    ASSERT_TRUE(pickle.ok()) << pickle.status();
    EXPECT_EQ(pickle->kind(pickle->root()), PickleKind::kInt);
    EXPECT_EQ(pickle->integer(pickle->root()), one.value);
  }
  const std::string wide =
      Protocol4(Bytes({0x8a, 9, 0, 0, 0, 0, 0, 0, 0, 0, 1}));
  const auto big = Parse(wide);
  ASSERT_TRUE(big.ok());
  EXPECT_EQ(big->kind(big->root()), PickleKind::kBigInt);
  EXPECT_EQ(big->text(big->root()).size(), 9u);
  const std::string half =
      Protocol4(Bytes({'G', 0x3f, 0xe0, 0, 0, 0, 0, 0, 0}));
  const auto number = Parse(half);
  ASSERT_TRUE(number.ok());
  EXPECT_EQ(number->number(number->root()), 0.5);
}

TEST(PickleTest, ADictionaryWithAListIsFoundByItsKeys) {
  // {"a": [1, 2], "b": ("x",)}
  const std::string bytes =
      Protocol4("}(" + Short("a") + "](K\1K\2e" + Short("b") + Short("x") +
                Bytes({0x85}) + "u");
  const auto pickle = Parse(bytes);
  ASSERT_TRUE(pickle.ok()) << pickle.status();
  EXPECT_EQ(pickle->size(), bytes.size());
  const auto a = pickle->Find(pickle->root(), "a");
  ASSERT_TRUE(a.has_value());
  ASSERT_EQ(pickle->children(*a).size(), 2u);
  EXPECT_EQ(pickle->integer(pickle->children(*a)[1]), 2);
  const auto b = pickle->Find(pickle->root(), "b");
  ASSERT_TRUE(b.has_value());
  EXPECT_EQ(pickle->text(pickle->children(*b)[0]), "x");
  EXPECT_FALSE(pickle->Find(pickle->root(), "c").has_value());
}

TEST(PickleTest, WhatWouldBeCalledIsARecordAndNothingRuns) {
  // os.system("touch /tmp/x"), the oldest trick.
  const std::string bytes =
      Protocol4("cos\nsystem\n" + Short("touch /tmp/x") + Bytes({0x85}) + "R");
  const auto pickle = Parse(bytes);
  ASSERT_TRUE(pickle.ok()) << pickle.status();
  EXPECT_TRUE(pickle->IsCallOf(pickle->root(), "os.system"));
  const auto arguments = pickle->children(pickle->arguments(pickle->root()));
  ASSERT_EQ(arguments.size(), 1u);
  EXPECT_EQ(pickle->text(arguments[0]), "touch /tmp/x");
  PickleOptions strict;
  strict.allowed = [](std::string_view name) { return name == "torch.Size"; };
  ExpectRefused(bytes, "opcode 0x63 at offset 2: it names 'os.system'", strict);
}

TEST(PickleTest, AnObjectHasItsArgumentsItsStateAndItsItems) {
  // m.C.__new__(m.C) with the state {"f": 7}, then one item set.
  const std::string bytes =
      Protocol4(Short("m") + Short("C") + Bytes({0x93, ')', 0x81}) + "}" +
                Short("f") + "K\7sb" + Short("k") + "Ns");
  const auto pickle = Parse(bytes);
  ASSERT_TRUE(pickle.ok()) << pickle.status();
  ASSERT_TRUE(pickle->IsCallOf(pickle->root(), "m.C"));
  const auto state = pickle->state(pickle->root());
  ASSERT_TRUE(state.has_value());
  EXPECT_EQ(pickle->integer(*pickle->Find(*state, "f")), 7);
  EXPECT_TRUE(pickle->Find(pickle->root(), "k").has_value());
}

TEST(PickleTest, WhatIsRememberedIsTheSameValueAgain) {
  // l = []; (l, l) with l.append(5) in between: both are the one list.
  const std::string bytes =
      Protocol4("]" + Bytes({0x94}) + "K\5a" + Bytes({'h', 0, 0x86}));
  const auto pickle = Parse(bytes);
  ASSERT_TRUE(pickle.ok()) << pickle.status();
  const auto both = pickle->children(pickle->root());
  ASSERT_EQ(both.size(), 2u);
  EXPECT_EQ(both[0], both[1]);
  EXPECT_EQ(pickle->children(both[1]).size(), 1u);
}

TEST(PickleTest, AListInsideItselfIsReadAndWalksNowhere) {
  const std::string bytes = Protocol4("]" + Bytes({0x94, 'h', 0}) + "a");
  const auto pickle = Parse(bytes);
  ASSERT_TRUE(pickle.ok()) << pickle.status();
  EXPECT_EQ(pickle->children(pickle->root())[0], pickle->root());
}

TEST(PickleTest, WhatIsNoPickleOfProtocol2OrLaterIsRefused) {
  ExpectRefused("", "first byte is not 0x80");
  ExpectRefused("(lp0\n.", "first byte is not 0x80");
  ExpectRefused(Bytes({0x80, 1, 'N', '.'}), "protocol 1, not 2 to 5");
  ExpectRefused(Bytes({0x80, 9, 'N', '.'}), "protocol 9");
}

TEST(PickleTest, OpcodesThatNoPicklerWritesAreRefusedByOffset) {
  // INST, OBJ, EXT1, NEXT_BUFFER, READONLY_BUFFER, PERSID, GET, PUT, INT
  for (const int opcode :
       {0x69, 0x6f, 0x82, 0x97, 0x98, 0x50, 0x67, 0x70, 0x49}) {
    ExpectRefused(Protocol4(Bytes({opcode})), "at offset 2: this opcode");
  }
  ExpectRefused(Protocol4(Short("x") + "Q"), "persistent ids do not belong");
}

TEST(PickleTest, SizesAreComparedBeforeMemoryIsTaken) {
  ExpectRefused(Protocol4(Bytes({'X', 0xff, 0xff, 0xff, 0xff})),
                "it wants 4294967295 bytes, 1 are left");
  ExpectRefused(
      Protocol4(Bytes({0x8d, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})),
      "it wants 18446744073709551615 bytes");
  ExpectRefused(Protocol4(Bytes({'N', 'r', 0xff, 0xff, 0xff, 0xff})),
                "number 4294967295 is out of order");
  ExpectRefused(Bytes({0x80, 4, 'J', 1}), "ends inside its argument");
  ExpectRefused(Bytes({0x80, 4, 'N'}), "ends inside its argument");
}

TEST(PickleTest, ObjectsDoNotCopyOneDictionaryAgainAndAgain) {
  // {None: None, ...} of a thousand entries, remembered as 0, and () as 1; then
  // objects that are called with it by name, each dropped again.
  const std::string values = "}(" + std::string(2000, 'N') + "u" +
                             Bytes({'q', 0, '0', ')', 'q', 1, '0'});
  const std::string made = Bytes({'h', 0, 'h', 1, 'h', 0, 0x92});
  EXPECT_TRUE(Parse(Protocol4(values + made)).ok());
  std::string many = values;
  for (int i = 0; i < 1000; ++i) many += made + "0";
  ExpectRefused(Protocol4(many + "N"),
                "its objects share their named arguments");
}

TEST(PickleTest, AStackThatDoesNotFitItsOpcodesIsRefused) {
  ExpectRefused(Protocol4(""), "0 values are left");
  ExpectRefused(Protocol4("NN"), "2 values are left");
  ExpectRefused(Protocol4("(N"), "values are left");
  ExpectRefused(Protocol4("a"), "there is no value for it");
  ExpectRefused(Protocol4("t"), "there is no mark");
  ExpectRefused(Protocol4("N(0"), "there is no value for it");
  ExpectRefused(Protocol4("}(N" + Bytes({'u'})), "a key has no value");
  ExpectRefused(Protocol4("]Nb"), "it gives a state to a list");
  ExpectRefused(Protocol4("NNa"), "it extends None");
  ExpectRefused(Protocol4("NNR"), "the arguments are no tuple");
  ExpectRefused(Protocol4(Bytes({'h', 3})), "nothing was remembered as 3");
  ExpectRefused(Protocol4(Bytes({'K', 1, 'K', 2, 0x93})),
                "module and name are not strings");
}

TEST(PickleTest, MoreValuesOrAHigherStackThanAllowedIsRefused) {
  PickleOptions few;
  few.limits.nodes_max = 3;
  ExpectRefused(Protocol4("NNNN"), "more than 3 values", few);
  PickleOptions low;
  low.limits.stack_max = 10;
  ExpectRefused(Protocol4(std::string(11, '(')), "stack grows too high", low);
  ExpectRefused(Protocol4(std::string(11, 'N')), "stack grows too high", low);
}

TEST(PickleTest, MoreMemoryThanAllowedIsRefusedWhateverTakesIt) {
  PickleOptions small;
  small.limits.memory_max = 4 << 20;
  const auto times = [](int n, std::string_view text) {
    std::string all;
    for (int i = 0; i < n; ++i) all += text;
    return all;
  };
  constexpr char kWords[] = "more than the 4 MiB of memory";
  // Values, empty lists, pairs, entries of one list, names.
  ExpectRefused(Protocol4(times(300'000, "N0")), kWords, small);
  ExpectRefused(Protocol4(times(150'000, "]0")), kWords, small);
  ExpectRefused(Protocol4(times(150'000, Bytes({'N', 'N', 0x86, '0'}))), kWords,
                small);
  ExpectRefused(Protocol4("](N" + Bytes({'q', 0}) +
                          times(1'200'000, Bytes({'h', 0})) + "e"),
                kWords, small);
  ExpectRefused(Protocol4(times(100'000, "cmodule\nname\n0")), kWords, small);
  // What is far below.
  const std::string few = Protocol4("](" + times(100'000, "N") + "e");
  const auto read = Pickle::Parse(few, small);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->children(read->root()).size(), 100'000u);
}

TEST(PickleTest, AListThatGrowsInManyStepsKeepsItsOrder) {
  // Two of them in turn, so that neither can grow where it is.
  std::string text = Bytes({']', 'q', 0, ']', 'q', 1, '0', '0'});
  for (int i = 0; i < 5000; ++i) {
    for (const uint8_t list : {0, 1}) {
      text += Bytes({'h', list});
      const auto low = static_cast<uint8_t>(i),
                 high = static_cast<uint8_t>(i >> 8);
      text += Bytes({'M', low, high, 'a', '0'});
    }
  }
  text += Bytes({'h', 0, 'h', 1, 0x86});
  const std::string bytes = Protocol4(text);
  const auto read = Pickle::Parse(bytes, {});
  ASSERT_TRUE(read.ok()) << read.status();
  for (const Pickle::Node list : read->children(read->root())) {
    const auto numbers = read->children(list);
    ASSERT_EQ(numbers.size(), 5000u);
    for (int i = 0; i < 5000; ++i) {
      ASSERT_EQ(read->integer(numbers[i]), i);
    }
  }
}

TEST(PickleTest, ALongNameIsRefusedBeforeItIsCopied) {
  ExpectRefused(Protocol4("c" + std::string(5000, 'm') + "\n" + "n\n"),
                "a name of 5001 bytes");
}

}  // namespace
}  // namespace holdfast::tools
