// ckpt/c/texts.h: attributes as a C caller sees them. Private to ckpt/c.

#ifndef HOLDFAST_CKPT_C_TEXTS_H_
#define HOLDFAST_CKPT_C_TEXTS_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "ckpt/c/holdfast_ckpt.h"

namespace holdfast::ckpt {

// Names and values, sorted by name; they stay where they are.
class AttributeList {
 public:
  AttributeList() = default;
  explicit AttributeList(std::map<std::string, std::string> attributes)
      : attributes_(std::move(attributes)) {
    for (const auto& [name, value] : attributes_) {
      list_.push_back({name.c_str(), value.c_str()});
    }
  }
  // Nodes of a map stay where they are when it moves.
  AttributeList(AttributeList&&) = default;
  AttributeList& operator=(AttributeList&&) = default;

  const hf_ckpt_attribute* data() const { return list_.data(); }
  uint64_t size() const { return list_.size(); }

  absl::Status Find(std::string_view name, const char** value) const {
    const auto found = attributes_.find(std::string(name));
    if (found == attributes_.end()) {
      return absl::NotFoundError(absl::StrFormat(
          "there is no attribute '%s' among %d", name, attributes_.size()));
    }
    *value = found->second.c_str();
    return absl::OkStatus();
  }

 private:
  std::map<std::string, std::string> attributes_;
  std::vector<hf_ckpt_attribute> list_;
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_C_TEXTS_H_
