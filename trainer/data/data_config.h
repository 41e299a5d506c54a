// trainer/data/data_config.h: which token files a run reads, in what mixture.
//
// A plain struct that trainer/config.h fills from the keys `data.*`.

#ifndef HOLDFAST_TRAINER_DATA_DATA_CONFIG_H_
#define HOLDFAST_TRAINER_DATA_DATA_CONFIG_H_

#include <string>
#include <vector>

namespace holdfast::trainer {

struct DataConfig {
  // One data set each: PREFIX of PREFIX.bin, PREFIX.idx and, if tokens are
  // masked, PREFIX.mask.
  std::vector<std::string> paths = {};
  // Shares of the samples, in the order of `paths`; need not sum to 1. Empty
  // gives each data set the share of its training windows.
  std::vector<double> weights = {};
  // The last windows of each data set, held out for evaluation.
  double eval_fraction = 0.02;

  friend bool operator==(const DataConfig&, const DataConfig&) = default;
};

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_DATA_DATA_CONFIG_H_
