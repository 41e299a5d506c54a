// ckpt/session/catalog_locate.h: what a person means by RUN, RUN@STEP or a
// directory.
//
//   RUN                            its newest checkpoint
//   RUN@300                        the one of step 300 on the run's line
//   RUN@step-000000300.i0002.a02   that one, superseded or late ones included
//   DIR                            a checkpoint's own directory, anywhere
//
// Blocks. For tools, and for --init-from before a job's sessions run.

#ifndef HOLDFAST_CKPT_SESSION_CATALOG_LOCATE_H_
#define HOLDFAST_CKPT_SESSION_CATALOG_LOCATE_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "ckpt/base/clock.h"
#include "ckpt/session/catalog.h"
#include "ckpt/storage/open_storage.h"
#include "ckpt/storage/storage.h"

namespace holdfast::ckpt {

struct OpenedRun {
  std::unique_ptr<Storage> storage;
  std::string root;  // the path, for messages
  Catalog catalog;
};

// kNotFound: no such directory, or nothing of a run in it. `options.location`
// is set here.
absl::StatusOr<OpenedRun> OpenRun(const std::string& path,
                                  StorageOptions options, Clock& clock);

// Whether `text` can be one of the above, as far as it can be told from its
// form: kInvalidArgument says what is expected. Looks whether the directory is
// there, since its name may have an '@'.
absl::Status CheckCheckpointName(const std::string& text);

// Does `text` name a run as a whole, rather than one checkpoint? Looks at the
// directory; says no where there is none.
bool MeansWholeRun(const std::string& text);

struct LocatedCheckpoint {
  std::unique_ptr<Storage> storage;
  std::string root;
  std::string dir;  // in the storage; "." for its root
  // In a run: how the run sees it. None for a bare directory.
  std::optional<CatalogEntry> entry;
  std::string path() const { return dir == "." ? root : root + "/" + dir; }
};

// kNotFound: no such run or checkpoint; says what there is. kInvalidArgument:
// the text after '@' is neither a step nor an id.
absl::StatusOr<LocatedCheckpoint> LocateCheckpoint(const std::string& text,
                                                   StorageOptions options,
                                                   Clock& clock);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_SESSION_CATALOG_LOCATE_H_
