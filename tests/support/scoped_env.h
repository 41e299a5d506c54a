// tests/support/scoped_env.h: a variable of the environment for the length of a
// block, unset afterwards. No other thread looks at the environment meanwhile.

#ifndef HOLDFAST_TESTS_SUPPORT_SCOPED_ENV_H_
#define HOLDFAST_TESTS_SUPPORT_SCOPED_ENV_H_

#include <cstdlib>
#include <string>
#include <utility>

namespace holdfast::tests {

class ScopedEnv {
 public:
  ScopedEnv(std::string name, const std::string& value)
      : name_(std::move(name)) {
    ::setenv(name_.c_str(), value.c_str(), 1);
  }
  ~ScopedEnv() { ::unsetenv(name_.c_str()); }
  ScopedEnv(const ScopedEnv&) = delete;
  ScopedEnv& operator=(const ScopedEnv&) = delete;

 private:
  const std::string name_;
};

}  // namespace holdfast::tests

#endif  // HOLDFAST_TESTS_SUPPORT_SCOPED_ENV_H_
