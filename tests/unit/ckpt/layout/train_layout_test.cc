// Small models, laid out in many ways. The central property: over all ranks
// each element of each item is stored exactly once, wherever the cuts fall.

#include "ckpt/layout/train_layout.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/ckpt/layout/sample_layouts.h"

namespace holdfast::ckpt {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// How often each element of `item` is in `holding`, added to `times`.
void CountElements(const ItemSpec& item, const Fragment& fragment,
                   std::vector<int>* times) {
  const Box whole = WholeBox(item.shape);
  times->resize(whole.elements());
  for (const Box& box :
       BoxesOfRun(fragment.part, fragment.first, fragment.count)) {
    ForEachRow(whole, box, [&](int64_t index, int64_t length) {
      for (int64_t i = index; i < index + length; ++i) ++(*times)[i];
    });
  }
}

bool AllAre(const std::vector<int>& times, int expected) {
  return std::count(times.begin(), times.end(), expected) ==
         static_cast<int64_t>(times.size());
}

// Fragments lie on 4096, inside their region with their tail, and apart.
void ExpectWellPlaced(const std::vector<ItemSpec>& items,
                      const Holding& holding) {
  std::map<uint32_t, uint64_t> end_of;
  for (const Fragment& f : holding.fragments) {
    ASSERT_LT(f.region, holding.region_bytes.size());
    EXPECT_EQ(f.offset % 4096, 0u);
    EXPECT_GT(f.count, 0);
    EXPECT_GE(f.offset, end_of[f.region]) << "fragments overlap";
    const uint64_t bytes = f.count * SizeOf(items[f.item].dtype);
    end_of[f.region] = (f.offset + bytes + 4095) / 4096 * 4096;
    EXPECT_LE(end_of[f.region], holding.region_bytes[f.region]);
  }
}

TEST(TrainLayoutTest, StoresEveryElementOnceInEveryLayout) {
  int layouts = 0;
  for (const SampleLayout& sample : SampleLayouts()) {
    SCOPED_TRACE(sample.name);
    const auto layout = MakeLayout(sample);
    const std::vector<ItemSpec>& items = layout->items();
    std::vector<std::vector<int>> stored(items.size());
    std::vector<std::vector<int>> wanted(items.size());
    for (int rank = 0; rank < layout->world(); ++rank) {
      const Holding store = layout->StoredBy(Rank{rank});
      const Holding want = layout->WantedBy(Rank{rank});
      EXPECT_EQ(store.region_bytes, want.region_bytes);
      ExpectWellPlaced(items, store);
      ExpectWellPlaced(items, want);
      for (const Fragment& f : store.fragments) {
        CountElements(items[f.item], f, &stored[f.item]);
      }
      for (const Fragment& f : want.fragments) {
        CountElements(items[f.item], f, &wanted[f.item]);
      }
    }
    for (size_t i = 0; i < items.size(); ++i) {
      SCOPED_TRACE(items[i].name + " " + items[i].kind);
      EXPECT_EQ(stored[i].size(), size_t(WholeBox(items[i].shape).elements()));
      EXPECT_TRUE(AllAre(stored[i], 1));
      // One TP rank holds a part of a tensor that TP cuts, all of them hold
      // one that it does not; DP members share the blocks between them.
      const bool cut = items[i].name.find("norm") == std::string::npos;
      EXPECT_TRUE(AllAre(wanted[i], cut ? 1 : layout->mesh().tp));
    }
    ++layouts;
  }
  EXPECT_GE(layouts, 100);
}

TEST(TrainLayoutTest, ItemsAreSortedAndTheSameInEveryLayout) {
  const std::vector<ItemSpec> items = MakeLayout({.tp = 2, .dp = 3})->items();
  for (size_t i = 1; i < items.size(); ++i) {
    EXPECT_LT(std::tie(items[i - 1].name, items[i - 1].kind),
              std::tie(items[i].name, items[i].kind));
  }
  EXPECT_EQ(items, MakeLayout({.pp = 4, .vocab_pad = 1})->items());
}

TEST(TrainLayoutTest, TheDrawingOfTheHeader) {
  const std::vector<TensorSpec> tensors = {
      {.name = "embed", .shape = {5, 1024}},
      {.name = "q_proj", .shape = {2, 1024}, .layer = 0},
      {.name = "norm", .shape = {205}, .layer = 0}};
  const auto layout = *TrainLayout::Create(
      tensors, {.mesh = {.dp = 2}, .stages = *EvenStages(1, 1, 0, 0)});
  EXPECT_EQ(layout->BlockCount(0, 0), 5);
  EXPECT_EQ(layout->OwnedBlocks(0, 0, 0), (BlockRange{0, 2}));
  EXPECT_EQ(layout->OwnedBlocks(0, 0, 1), (BlockRange{2, 3}));

  const Holding second = layout->StoredBy(Rank{1});
  EXPECT_EQ(second.region_bytes,
            (std::vector<uint64_t>{5 * 4096, 3 * 8192, 3 * 8192, 3 * 8192}));
  ASSERT_EQ(second.fragments.size(), 12u);
  // items: embed, norm, q_proj, four kinds each, "weight" the last of them.
  const Box embed = WholeBox(tensors[0].shape);
  EXPECT_EQ(second.fragments[0], (Fragment{.item = 3,
                                           .part = embed,
                                           .first = 4096,
                                           .count = 1024,
                                           .region = kWeightRegion,
                                           .offset = 2 * 4096}));
  EXPECT_EQ(second.fragments[3], (Fragment{.item = 2,
                                           .part = embed,
                                           .first = 4096,
                                           .count = 1024,
                                           .region = kMasterRegion,
                                           .offset = 0}));
  EXPECT_EQ(second.fragments[5], (Fragment{.item = 6,
                                           .part = WholeBox(tensors[2].shape),
                                           .first = 0,
                                           .count = 205,
                                           .region = kMasterRegion,
                                           .offset = 2 * 8192}));
}

TEST(TrainLayoutTest, VocabularyPadsAreHeldButNeverStored) {
  // 10 rows padded to 16 over TP 4: 4 + 4 + 2 + 0 rows of 2048 elements.
  const auto layout = *TrainLayout::Create({{.name = "embed",
                                             .shape = {10, 2048},
                                             .tp_dimension = 0,
                                             .tp_pad_multiple = 16}},
                                           {.mesh = {.tp = 4}, .stages = {{}}});
  std::vector<int64_t> stored;
  for (int tp = 0; tp < 4; ++tp) {
    EXPECT_EQ(layout->BlockCount(tp, 0), 4);
    int64_t elements = 0;
    for (const Fragment& f : layout->StoredBy(Rank{tp}).fragments) {
      if (f.region == kWeightRegion) elements += f.count;
    }
    stored.push_back(elements / 2048);
  }
  EXPECT_THAT(stored, testing::ElementsAre(4, 4, 2, 0));
  EXPECT_EQ(layout->TensorsOf(3, 0)[0].elements, 0);
}

TEST(TrainLayoutTest, ATiedTensorIsStoredByTheFirstStageAndCopiedOnTheLast) {
  const auto layout = MakeLayout({.pp = 2, .dp = 2, .tied = true});
  const LocalTensor& first = layout->TensorsOf(0, 0).front();
  const LocalTensor& copy = layout->TensorsOf(0, 1).back();
  EXPECT_EQ(layout->tensors()[first.tensor].name, "model.embed_tokens.weight");
  EXPECT_EQ(copy.tensor, first.tensor);
  EXPECT_TRUE(first.stored_here && first.updated_here);
  EXPECT_FALSE(copy.stored_here || copy.updated_here);
  EXPECT_EQ(copy.first_block, layout->UpdatedBlockCount(0, 1));
  EXPECT_EQ(layout->UpdatedBlockCount(0, 1) + copy.block_count,
            layout->BlockCount(0, 1));
  // One stage holds it once.
  EXPECT_EQ(MakeLayout({.tied = true})->BlockCount(0, 0),
            MakeLayout({.tied = true})->UpdatedBlockCount(0, 0));
}

TEST(TrainLayoutTest, InterleavedChunksKeepGlobalLayerNumbers) {
  SampleLayout sample{.pp = 2};
  std::vector<TensorSpec> tensors = SampleTensors(sample);
  const auto layout = *TrainLayout::Create(
      tensors,
      {.mesh = {.pp = 2}, .stages = {{{0, 1}, {2, 1}}, {{1, 1}, {3, 1}}}});
  for (int pp = 0; pp < 2; ++pp) {
    for (const LocalTensor& local : layout->TensorsOf(0, pp)) {
      const int layer = tensors[local.tensor].layer;
      if (layer >= 0) {
        EXPECT_EQ(layer % 2, pp);
      }
    }
  }
}

TEST(TrainLayoutTest, NamesTheNumbersThatDoNotFit) {
  const TensorSpec good{
      .name = "w", .shape = {6, 4}, .tp_dimension = 0, .layer = 0};
  const TrainLayoutOptions one{.stages = {{{0, 1}}}};
  const auto refusal = [&](std::vector<TensorSpec> tensors,
                           TrainLayoutOptions options) {
    const auto layout = TrainLayout::Create(std::move(tensors), options);
    EXPECT_EQ(layout.status().code(), absl::StatusCode::kInvalidArgument);
    return layout.status().ToString();
  };
  const auto with = [&](auto change) {
    TensorSpec tensor = good;
    change(&tensor);
    return refusal({tensor}, one);
  };
  const auto where = [&](auto change) {
    TrainLayoutOptions options = one;
    change(&options);
    return refusal({good}, options);
  };

  EXPECT_THAT(where([](auto* o) { o->mesh.tp = 4; }),
              HasSubstr("tensor 'w': dimension 0 has 6 elements, tp = 4 does "
                        "not divide them"));
  EXPECT_THAT(refusal({{.name = "e",
                        .shape = {10},
                        .tp_dimension = 0,
                        .tp_pad_multiple = 8}},
                      {.mesh = {.tp = 3}, .stages = {{}}}),
              HasSubstr("has 10 elements, 16 with pads, tp = 3"));
  EXPECT_THAT(where([](auto* o) { o->mesh.cp = 2; }), HasSubstr("cp = 2"));
  EXPECT_THAT(where([](auto* o) { o->mesh.dp = 0; }), HasSubstr("dp = 0"));
  EXPECT_THAT(where([](auto* o) { o->sharding = Sharding::kFull; }),
              HasSubstr("sharding 'full' is not built"));
  EXPECT_THAT(where([](auto* o) { o->sharding = Sharding::kHybrid; }),
              HasSubstr("sharding 'hybrid' is not built"));
  EXPECT_THAT(where([](auto* o) { o->weight_dtype = DType::kU8; }),
              HasSubstr("weights of dtype u8"));
  EXPECT_THAT(where([](auto* o) { o->stages = {}; }),
              HasSubstr("the list of stages has 0 entries, pp is 1"));
  EXPECT_THAT(where([](auto* o) { o->stages = {{}}; }),
              HasSubstr("layer 0 of 1 is on no stage"));
  EXPECT_THAT(where([](auto* o) {
                o->stages = {{{0, 2}}};
              }),
              HasSubstr("stage 0 has 2 layers from layer 0 on, the model has "
                        "layers 0 to 0"));
  EXPECT_THAT(where([](auto* o) {
                o->mesh.pp = 2;
                o->stages = {{{0, 1}}, {{0, 1}}};
              }),
              HasSubstr("layer 0 is on stage 0 and on stage 1"));
  EXPECT_THAT(
      where([](auto* o) { o->mesh = {.tp = 2, .pp = 1, .dp = 1 << 30}; }),
      HasSubstr("more ranks than"));
  EXPECT_THAT(refusal({good, good}, one),
              HasSubstr("'w' is in the table twice"));
  EXPECT_THAT(with([](auto* t) {
                t->shape = {6, 0};
              }),
              HasSubstr("a dimension of 0 elements"));
  EXPECT_THAT(with([](auto* t) {
                t->shape = {1 << 30, 1 << 30};
              }),
              HasSubstr("at most 2^56"));
  EXPECT_THAT(with([](auto* t) {
                t->shape = {2, 1, 1, 1, 1};
              }),
              HasSubstr("5 dimensions, at most 4"));
  EXPECT_THAT(with([](auto* t) { t->tp_dimension = 2; }),
              HasSubstr("cut over dimension 2 of 2"));
  EXPECT_THAT(with([](auto* t) {
                t->tp_dimension = 1;
                t->tp_pad_multiple = 8;
              }),
              AllOf(HasSubstr("multiple of 8"), HasSubstr("dimension 0")));
  EXPECT_THAT(with([](auto* t) { t->tied_to_last_stage = true; }),
              HasSubstr("tied to the last stage, but not on the first"));
  EXPECT_THAT(with([](auto* t) { t->layer = -3; }), HasSubstr("layer -3"));
}

}  // namespace
}  // namespace holdfast::ckpt
