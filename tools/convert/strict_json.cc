// tools/convert/strict_json.cc: a tree of JSON by events, so that a second key
// of the same name is seen.

#include "tools/convert/strict_json.h"

#include <utility>
#include <vector>

#include "absl/strings/str_format.h"

namespace holdfast::tools {
namespace {

using nlohmann::json;

class TreeBuilder final : public json::json_sax_t {
 public:
  explicit TreeBuilder(std::string_view name) : name_(name) {}

  const absl::Status& status() const { return status_; }
  json& root() { return root_; }

  bool null() override { return Put(nullptr) != nullptr; }
  bool boolean(bool value) override { return Put(value) != nullptr; }
  bool number_integer(int64_t value) override { return Put(value) != nullptr; }
  bool number_unsigned(uint64_t value) override {
    return Put(value) != nullptr;
  }
  bool number_float(double value, const std::string&) override {
    return Put(value) != nullptr;
  }
  bool string(std::string& value) override {
    return Put(std::move(value)) != nullptr;
  }
  bool binary(json::binary_t&) override { return Fail("has binary"); }

  bool start_object(size_t) override { return Open(json::object()); }
  bool start_array(size_t) override { return Open(json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(std::string& text) override {
    if (open_.back()->contains(text)) {
      return Fail(absl::StrFormat("has the key '%s' twice in one object",
                                  text.substr(0, 200)));
    }
    key_ = text;
    return true;
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return Fail(absl::StrFormat("is no JSON at byte %d", position));
  }

 private:
  static constexpr size_t kLevelsMax = 64;

  bool Fail(const std::string& what) {
    if (status_.ok()) {
      status_ = absl::InvalidArgumentError(
          absl::StrFormat("%s %s", std::string(name_), what));
    }
    return false;
  }

  json* Put(json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    json& child = parent[key_];
    child = std::move(value);
    return &child;
  }
  // What was pushed before into an array may move when it grows, so only the
  // newest element of each open one is ever pointed to.
  bool Open(json value) {
    if (open_.size() == kLevelsMax) {
      return Fail(absl::StrFormat("has more than %d levels", kLevelsMax));
    }
    open_.push_back(Put(std::move(value)));
    return true;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }

  const std::string_view name_;
  absl::Status status_;
  json root_;
  std::vector<json*> open_;
  std::string key_;
};

}  // namespace

absl::StatusOr<json> ParseStrictJson(std::string_view text,
                                     std::string_view name) {
  TreeBuilder builder(name);
  const bool read =
      json::sax_parse(text.data(), text.data() + text.size(), &builder);
  if (!builder.status().ok()) return builder.status();
  if (!read) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s is no JSON", std::string(name)));
  }
  return std::move(builder.root());
}

}  // namespace holdfast::tools
