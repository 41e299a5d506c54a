// tests/e2e/job_test.h: what the end-to-end tests share: real ranks over
// mpirun, or a skip that says why not.

#ifndef HOLDFAST_TESTS_E2E_JOB_TEST_H_
#define HOLDFAST_TESTS_E2E_JOB_TEST_H_

#include <cstdlib>
#include <string>

#include "gtest/gtest.h"
#include "tests/support/runs/small_runs.h"

namespace holdfast::tests {

class JobTest : public testing::Test {
 protected:
  void SetUp() override {
    if (std::system("command -v mpirun >/dev/null") != 0) {
      GTEST_SKIP() << "mpirun is not installed (Debian package openmpi-bin)";
    }
  }

  const SmallRuns runs_;
};

}  // namespace holdfast::tests

#endif  // HOLDFAST_TESTS_E2E_JOB_TEST_H_
