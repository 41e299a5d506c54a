// tools/convert/hdf5_archive.cc: what an archive means, read as a state.
// Nothing here knows the HDF5 library (hdf5_file.h).

#include "tools/convert/hdf5_archive.h"

#include <array>
#include <atomic>
#include <charconv>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/format/digest.h"
#include "ckpt/layout/box.h"
#include "tools/convert/foreign_files.h"
#include "tools/convert/hdf5_file.h"
#include "tools/convert/train_target.h"
#include "trainer/resume_state.h"

namespace holdfast::tools {
namespace {

using ckpt::Digest128;
using ckpt::ItemSpec;
using ckpt::WantedRun;

class Hdf5Source final : public ckpt::StateSource {
 public:
  Hdf5Source(ForeignFile file, Hdf5Contents contents)
      : file_(std::move(file)), attributes_(std::move(contents.attributes)) {
    bool any = false;
    for (Hdf5Tensor& tensor : contents.tensors) {
      any |= tensor.digest.has_value();
      has_digest_.push_back(tensor.digest.has_value());
      digests_.push_back(tensor.digest.value_or(Digest128{}));
      offsets_.push_back(tensor.offset);
      items_.push_back(std::move(tensor.item));
    }
    if (!any) digests_.clear();
  }

  const std::vector<ItemSpec>& items() const override { return items_; }
  const std::map<std::string, std::string>& attributes() const override {
    return attributes_;
  }
  // Calls of pread are independent of each other.
  int fills_at_once() const override { return 64; }
  std::string identity() const override { return "hdf5 " + file_.identity(); }
  std::span<const Digest128> recorded_digests() const override {
    return digests_;
  }
  bool records_digest_of(ckpt::ItemIndex item) const override {
    return has_digest_[item];
  }
  uint64_t bytes_read() const override { return bytes_read_; }

  absl::Status Fill(std::span<const WantedRun> wants) override {
    for (const WantedRun& want : wants) {
      std::span<std::byte> out = want.out;
      for (const ckpt::Box& box :
           ckpt::BoxesOfRun(want.part, want.first, want.count)) {
        HF_RETURN_IF_ERROR(ReadBox(want.item, box, &out));
      }
    }
    return absl::OkStatus();
  }

 private:
  // The box's elements in its own order, in as few reads as it has runs of
  // neighbours.
  absl::Status ReadBox(ckpt::ItemIndex index, const ckpt::Box& box,
                       std::span<std::byte>* out) {
    const ItemSpec& item = items_[index];
    const auto size = static_cast<int64_t>(ckpt::SizeOf(item.dtype));
    // Dimensions from `inner` on are neighbours in the file.
    int inner = box.dimensions;
    int64_t run = 1;
    while (inner > 0) {
      --inner;
      run *= box.count[inner];
      if (box.count[inner] != item.shape[inner]) break;
    }
    std::array<int64_t, ckpt::kDimensionsMax> at = box.first;
    while (true) {
      int64_t element = 0;
      for (int d = 0; d < box.dimensions; ++d) {
        element = element * item.shape[d] + at[d];
      }
      const auto bytes = static_cast<size_t>(run * size);
      HF_RETURN_IF_ERROR(
          file_.ReadAt(offsets_[index] + element * size, out->first(bytes)));
      bytes_read_ += bytes;
      *out = out->subspan(bytes);
      int d = inner - 1;
      for (; d >= 0; --d) {
        if (++at[d] < box.first[d] + box.count[d]) break;
        at[d] = box.first[d];
      }
      if (d < 0) return absl::OkStatus();
    }
  }

  const ForeignFile file_;
  const std::map<std::string, std::string> attributes_;
  std::vector<ItemSpec> items_;
  std::vector<uint64_t> offsets_;
  std::vector<Digest128> digests_;
  std::vector<bool> has_digest_;
  std::atomic<uint64_t> bytes_read_ = 0;
};

// The archive's step, which a training state's attributes must agree with, for
// they are what a resume takes; theirs, where it says none; else 0.
absl::StatusOr<int64_t> StepOf(const Hdf5Contents& contents,
                               const std::string& path) {
  const auto saved = trainer::FromAttributes(contents.attributes);
  const auto fact = contents.facts.find("step");
  if (fact == contents.facts.end()) return saved.ok() ? saved->step : 0;
  const std::string& text = fact->second;
  const char* const end = text.data() + text.size();
  int64_t step = -1;
  const auto [rest, error] = std::from_chars(text.data(), end, step);
  if (error != std::errc() || rest != end || step < 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: its attribute step is '%s'; a whole number from 0 on is expected",
        path, text));
  }
  if (saved.ok() && saved->step != step) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: its attribute step is %d, that of /attributes is %d", path, step,
        saved->step));
  }
  return step;
}

// What is not compared with a digest, for the user.
std::string UncomparedText(const ckpt::StateSource& source) {
  constexpr size_t kNamedMax = 3;
  const std::vector<ItemSpec>& items = source.items();
  std::string names;
  size_t without = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    if (source.records_digest_of(static_cast<ckpt::ItemIndex>(i))) continue;
    if (++without > kNamedMax) continue;
    absl::StrAppendFormat(&names, "%s'%s' (%s)", without > 1 ? ", " : "",
                          items[i].name, items[i].kind);
  }
  if (without == 0) return "";
  if (without == items.size()) {
    return "no tensor has a digest: their bytes are taken as they are";
  }
  return absl::StrFormat(
      "%d of %d tensors have no digest, their bytes are taken as they are: "
      "%s%s",
      without, items.size(), names, without > kNamedMax ? ", ..." : "");
}

// Attributes have no digest of their own, but the whole state has one, which
// says whether they and the tensors' digests are those of the export.
absl::Status CheckWholeDigest(const std::map<std::string, std::string>& facts,
                              const ckpt::StateSource& source,
                              const std::string& path) {
  const auto fact = facts.find("digest");
  if (fact == facts.end()) return absl::OkStatus();
  for (size_t i = 0; i < source.items().size(); ++i) {
    if (!source.records_digest_of(static_cast<ckpt::ItemIndex>(i))) {
      return absl::OkStatus();  // said by UncomparedText
    }
  }
  const std::string found = ckpt::ToHex(ckpt::DigestOfState(
      source.items(), source.recorded_digests(), source.attributes()));
  if (found == fact->second) return absl::OkStatus();
  return absl::DataLossError(absl::StrFormat(
      "%s: its attribute digest is '%s', what is in /attributes and the "
      "tensors' digests have %s: something was changed. If that was meant, "
      "remove the attribute",
      path, fact->second, found));
}

// The decoder, when the state is one's: its configuration says which, and the
// items are all of its.
void FindModel(const ckpt::StateSource& source, ImportedState* state) {
  const auto model = ModelOfAttributes(source.attributes());
  if (!model.ok()) {
    // A state without a configuration is not a trainer's, and nothing is lost.
    if (!source.attributes().contains(".config")) return;
    state->why_no_model =
        absl::StrFormat("its configuration is not understood: %s",
                        std::string(model.status().message()));
    state->notes.push_back(state->why_no_model +
                           "; what is there is cut by rows");
    return;
  }
  for (const auto compute :
       {trainer::ComputeType::kBf16, trainer::ComputeType::kF32}) {
    if (source.items() != ItemsOf(*model, compute)) continue;
    state->model = *model;
    state->compute = compute;
    return;
  }
  state->why_no_model =
      "its configuration is that of another model, or some of the model's "
      "tensors are not there";
  state->notes.push_back(state->why_no_model +
                         "; what is there is cut by rows");
}

}  // namespace

absl::StatusOr<ImportedState> OpenHdf5(const ImportRequest& request) {
  if (!request.model_file.empty() || !request.ignore.empty()) {
    return absl::InvalidArgumentError(
        "--model and --ignore: an archive has its model and nothing foreign");
  }
  const std::filesystem::path path(request.from);
  HF_ASSIGN_OR_RETURN(const ForeignDirectory directory,
                      ForeignDirectory::Open(path.has_parent_path()
                                                 ? path.parent_path().string()
                                                 : "."));
  HF_ASSIGN_OR_RETURN(ForeignFile file, directory.OpenFile(path.filename()));
  HF_ASSIGN_OR_RETURN(Hdf5Contents contents,
                      ReadHdf5(file.fd(), request.from, request.memory_max));
  const auto format = contents.facts.find("format");
  if (format != contents.facts.end() && format->second != kHdf5Format) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s has format '%s'; this program reads '%s'",
                        request.from, format->second, kHdf5Format));
  }
  if (contents.tensors.empty()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: /state has no tensors", request.from));
  }
  ImportedState state;
  state.memory_bytes = contents.memory_bytes;
  HF_ASSIGN_OR_RETURN(state.step, StepOf(contents, request.from));
  std::map<std::string, std::string> facts = std::move(contents.facts);
  auto source =
      std::make_unique<Hdf5Source>(std::move(file), std::move(contents));
  HF_RETURN_IF_ERROR(CheckWholeDigest(facts, *source, request.from));
  if (std::string text = UncomparedText(*source); !text.empty()) {
    state.notes.push_back(std::move(text));
  }
  FindModel(*source, &state);
  state.source = std::move(source);
  return state;
}

}  // namespace holdfast::tools
