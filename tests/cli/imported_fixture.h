// tests/cli/imported_fixture.h: a run with the smallest model that has all of a
// trainer's attributes, in a moment: a Hugging Face directory, imported.

#ifndef HOLDFAST_TESTS_CLI_IMPORTED_FIXTURE_H_
#define HOLDFAST_TESTS_CLI_IMPORTED_FIXTURE_H_

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "ckpt/base/check.h"
#include "gtest/gtest.h"
#include "tests/cli/run_program.h"
#include "tests/unit/tools/convert/hf_files.h"

namespace holdfast::tests {

class ImportedRunTest : public testing::Test {
 protected:
  ImportedRunTest() {
    tools::WriteHfModel(hf(), tools::SmallHfModel(/*tied=*/false));
    const Outcome made =
        RunProgram("ckptctl", {"import", hf(), "--from", "hf", "--out", run()});
    HF_CHECK(made.code == 0, "%s", made.err);
    // Some cases start programs as another user.
    std::filesystem::permissions(folder_ / "", std::filesystem::perms::all);
  }

  std::string hf() const { return folder_ / "hf"; }
  std::string run() const { return folder_ / "run"; }  // its only step is 0
  std::string Digest(const std::string& of) const {
    const Outcome outcome =
        RunProgram("ckptctl", {"verify", of, "--hash", "--json"});
    const auto json = nlohmann::json::parse(outcome.out, nullptr,
                                            /*allow_exceptions=*/false);
    return json.is_object() ? json.value("digest", "no digest") : outcome.err;
  }

  TestFolder folder_;
};

}  // namespace holdfast::tests

#endif  // HOLDFAST_TESTS_CLI_IMPORTED_FIXTURE_H_
