// ckpt/session/rank_names.cc: see rank_names.h.

#include "ckpt/session/rank_names.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace holdfast::ckpt {
namespace {

constexpr size_t kRanksNamedMax = 8;

}  // namespace

std::string NameRanks(const Group& group, const std::vector<int>& ranks) {
  if (ranks.empty()) return "none";
  const std::string host = group.HostOf(Rank{ranks[0]});
  const bool one_host = std::all_of(ranks.begin(), ranks.end(), [&](int rank) {
    return group.HostOf(Rank{rank}) == host;
  });
  std::vector<std::string> names;
  for (const int rank : ranks) {
    if (names.size() == kRanksNamedMax) {
      names.push_back(
          absl::StrFormat("and %d more", ranks.size() - kRanksNamedMax));
      break;
    }
    names.push_back(
        one_host ? absl::StrFormat("%d", rank)
                 : absl::StrFormat("%d (%s)", rank, group.HostOf(Rank{rank})));
  }
  std::string text = absl::StrJoin(names, ", ");
  if (one_host) {
    text += absl::StrFormat(
        ranks.size() > 1 ? " (all on node %s)" : " (on node %s)", host);
  }
  return text;
}

}  // namespace holdfast::ckpt
