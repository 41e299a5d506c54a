// ckpt/session/rank_names.h: ranks and their hosts in words. Pure but for the
// group's host names.

#ifndef HOLDFAST_CKPT_SESSION_RANK_NAMES_H_
#define HOLDFAST_CKPT_SESSION_RANK_NAMES_H_

#include <string>
#include <vector>

#include "ckpt/group/group.h"

namespace holdfast::ckpt {

// "17, 18, 19 (all on node n042)", "3 (n001), 9 (n002)"; the first eight.
std::string NameRanks(const Group& group, const std::vector<int>& ranks);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_SESSION_RANK_NAMES_H_
