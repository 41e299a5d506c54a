// trainer/data/unigram.h: the entropy of tokens taken one by one.
//
// A model that knows nothing but how frequent each token is has this loss; a
// run whose loss falls below it has learned from context. Pure.

#ifndef HOLDFAST_TRAINER_DATA_UNIGRAM_H_
#define HOLDFAST_TRAINER_DATA_UNIGRAM_H_

#include <cmath>
#include <span>

namespace holdfast::trainer {

// In nats a token: the sum of -p ln p over the tokens that occur; 0 when none
// do. `counts` are occurrences or shares, none negative, one entry for every
// token of the vocabulary; they need not sum to 1.
template <typename Number>
double UnigramEntropy(std::span<const Number> counts) {
  double total = 0;
  for (const Number count : counts) total += static_cast<double>(count);
  double entropy = 0;
  for (const Number count : counts) {
    if (count == 0) continue;
    const double p = static_cast<double>(count) / total;
    entropy -= p * std::log(p);
  }
  return entropy;
}

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_DATA_UNIGRAM_H_
