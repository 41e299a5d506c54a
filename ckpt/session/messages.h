// ckpt/session/messages.h: the phases of the messages that sessions exchange.
//
// Every message carries (incarnation, attempt, phase); a receiver drops what
// does not belong to what it is doing now.

#ifndef HOLDFAST_CKPT_SESSION_MESSAGES_H_
#define HOLDFAST_CKPT_SESSION_MESSAGES_H_

#include <cstdint>

namespace holdfast::ckpt {

enum Phase : uint32_t {
  // Claiming a run and agreeing on a checkpoint to load. attempt = 0 where
  // nothing else is said.
  kPhaseHello = 1,   // rank -> 0: ready, run directory seen, fingerprint
  kPhaseChoice = 2,  // 0 -> all: incarnation, manifest bytes or "start fresh"
  kPhaseLoadReport = 3,   // rank -> 0: loaded, damaged or failed, and where
  kPhaseLoadVerdict = 4,  // 0 -> all: use it, step back, or stop
  // During one try of a load, whose number is the attempt (exchange.h).
  kPhasePiece = 5,       // reader -> receiver: bytes, or that there are no more
  kPhasePieceTaken = 6,  // receiver -> reader: so many pieces are in place
  kPhaseLoadStop = 7,    // 0 -> all: a rank has failed, do not wait for it
  // Before the claim.
  kPhasePreflight = 8,        // 0 -> all: look at the run directory
  kPhasePreflightReport = 9,  // rank -> 0: what there was to see
  // One save. attempt >= 1; 0 in a kPhaseBegin that refuses. The bodies are in
  // save_messages.h. A rank that gets a Begin sends at most one Vote, and one
  // Done.
  kPhaseBegin = 10,    // 0 -> all: the attempt's directory is there, or why not
  kPhaseVote = 11,     // rank -> 0: yes or no
  kPhaseOutcome = 12,  // 0 -> all: committed, aborted or unknown
  kPhaseDone = 13,     // rank -> 0: this rank touches the attempt no more
  // Of a file that several ranks share, between its leader and the others.
  kPhaseFile = 14,  // leader -> member: the attempt's file is there
  kPhasePart =
      15,  // member -> leader: its part is durable, and the index of it
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_SESSION_MESSAGES_H_
