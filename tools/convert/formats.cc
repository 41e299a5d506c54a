// tools/convert/formats.cc: the table of formats.

#include "tools/convert/formats.h"

#include "absl/strings/str_format.h"
#include "tools/convert/hdf5_archive.h"
#include "tools/convert/hf_llama.h"
#include "tools/convert/running_jobs.h"

namespace holdfast::tools {
namespace {

constexpr Format kFormats[] = {
    {"hdf5",
     "one HDF5 file of the whole state, which h5py reads; nothing is lost",
     &OpenHdf5, &WriteHdf5},
    {"hf",
     "Hugging Face Llama: config.json and (sharded) model.safetensors; weights "
     "alone",
     &OpenHfLlama, &WriteHfLlama},
    {"torchtitan",
     "torchtitan's training checkpoint of a Llama 3 (DCP): weights, moments, "
     "step; wants --model",
     &OpenTorchtitan, nullptr, true},
    {"megatron",
     "Megatron Core's torch_dist of a GPT model: weights, masters, moments, "
     "step",
     &OpenMegatron, nullptr, true},
    {"dcp",
     "any checkpoint of torch.distributed.checkpoint, tensor by tensor as it "
     "is",
     &OpenDcp, nullptr, true},
};

bool Imports(const Format& format) { return format.open != nullptr; }
bool Exports(const Format& format) { return format.write != nullptr; }

absl::StatusOr<Format> Find(std::string_view name, const char* option,
                            bool (*usable)(const Format&)) {
  std::string names;
  for (const Format& format : kFormats) {
    if (!usable(format)) continue;
    if (format.name == name) return format;
    names += (names.empty() ? "" : ", ") + std::string(format.name);
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("%s %s: there is no such format; there is %s", option,
                      std::string(name), names));
}

std::string Help(bool (*usable)(const Format&)) {
  std::string help;
  for (const Format& format : kFormats) {
    if (!usable(format)) continue;
    absl::StrAppendFormat(&help, "  %-11s %s\n", std::string(format.name),
                          std::string(format.what));
  }
  return help;
}

}  // namespace

std::span<const Format> Formats() { return kFormats; }

absl::StatusOr<Format> FindImport(std::string_view name) {
  return Find(name, "--from", &Imports);
}
absl::StatusOr<Format> FindExport(std::string_view name) {
  return Find(name, "--to", &Exports);
}
std::string ImportHelp() { return Help(&Imports); }
std::string ExportHelp() { return Help(&Exports); }

}  // namespace holdfast::tools
