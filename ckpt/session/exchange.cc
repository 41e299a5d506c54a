// ckpt/session/exchange.cc: pieces out, pieces in, and who is silent.

#include "ckpt/session/exchange.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/session/exchange_messages.h"
#include "ckpt/session/messages.h"

namespace holdfast::ckpt {
namespace {

// Smaller messages cost more than their bytes.
constexpr uint64_t kPieceBytesMin = uint64_t{64} << 10;

}  // namespace

Exchange::Exchange(Group* group, Clock* clock, const MessageTag& tag,
                   const ExchangeOptions& options)
    : group_(group), clock_(clock), tag_(tag), options_(options) {
  HF_CHECK(options.piece_bytes > 0 && options.bytes_max >= options.piece_bytes,
           "pieces of %d bytes of %d", options.piece_bytes, options.bytes_max);
}

std::string Exchange::NameOf(Rank rank) const {
  return absl::StrFormat("rank %d (%s)", Index(rank), group_->HostOf(rank));
}

void Exchange::Begin(const SharePlan* plan, const SharedReads* reads,
                     std::span<const std::span<std::byte>> regions,
                     PutBytes put) {
  plan_ = plan;
  reads_ = reads;
  regions_.assign(regions.begin(), regions.end());
  put_ = std::move(put);
  const absl::Duration now = clock_->Monotonic();
  for (const SharePlan::Receiver& receiver : plan->receivers) {
    Receiver& to = receivers_.emplace_back();
    to.rank = receiver.rank;
    to.since = to.spoken = now;
  }
  for (const Rank rank : plan->senders) senders_[rank].since = now;
  senders_left_ = senders_.size();
  // Everyone sends to the next rank above first, so that not all send to one.
  while (first_ < receivers_.size() && receivers_[first_].rank < group_->rank())
    ++first_;
  // A rank that does not take for a while has a piece there from each of its
  // senders, which are about as many: all of them are to be few bytes.
  piece_bytes_ = std::min(
      options_.piece_bytes,
      std::max(kPieceBytesMin,
               options_.bytes_max / std::max<size_t>(1, receivers_.size())));
  for (const Message& message : std::exchange(early_, {})) OnMessage(message);
}

// --- Out -------------------------------------------------------------------

void Exchange::Take(uint32_t file, uint64_t offset,
                    std::span<const std::byte> bytes) {
  if (!status_.ok()) return;
  moved_ = true;
  const uint64_t end = offset + bytes.size();
  if (!NoteRange(file, offset, end)) {
    GiveUp(
        absl::StrFormat("bytes %d-%d of file %d came from another rank and "
                        "were read here too",
                        offset, end, file));
    return;
  }
  std::shared_ptr<Read> kept;  // of what cannot be sent at once
  for (size_t n = 0; n < receivers_.size(); ++n) {
    const size_t i = (first_ + n) % receivers_.size();
    const Scatter& theirs = reads_->receivers()[i];
    Receiver& to = receivers_[i];
    const uint64_t wanted = theirs.PackedBytes(file, offset, end);
    if (wanted == 0) continue;
    // Cut evenly, so that a piece has some piece_bytes_ whatever share of the
    // range is wanted.
    const uint64_t pieces = (wanted + piece_bytes_ - 1) / piece_bytes_;
    const uint64_t step = (bytes.size() + pieces - 1) / pieces;
    for (uint64_t at = offset; at < end; at += step) {
      const uint64_t size = std::min(step, end - at);
      const uint64_t packed = theirs.PackedBytes(file, at, at + size);
      if (packed == 0) continue;
      if (to.queue.empty() && MaySend(to, packed)) {
        SendPiece(i, file, at, bytes.subspan(at - offset, size));
        continue;
      }
      if (kept == nullptr) {
        kept = std::make_shared<Read>(
            Read{file, offset, {bytes.begin(), bytes.end()}});
        bytes_queued_ += bytes.size();
      }
      to.queue.push_back({kept, at, at + size});
    }
  }
  bytes_held_most_ =
      std::max(bytes_held_most_, bytes_queued_ + bytes_under_way_);
}

// One piece may always be under way, and one to each as far as the bound for
// all allows.
bool Exchange::MaySend(const Receiver& to, uint64_t size) const {
  const uint64_t each_max = options_.bytes_max / receivers_.size();
  return (to.bytes_under_way == 0 || to.bytes_under_way + size <= each_max) &&
         (bytes_under_way_ == 0 ||
          bytes_under_way_ + size <= options_.bytes_max);
}

void Exchange::SendPiece(size_t receiver, uint32_t file, uint64_t offset,
                         std::span<const std::byte> bytes) {
  const Scatter& scatter = reads_->receivers()[receiver];
  Receiver& to = receivers_[receiver];
  PieceMessage piece;
  piece.number = ++to.pieces;
  piece.file = file;
  piece.begin = offset;
  piece.end = offset + bytes.size();
  std::vector<std::byte> body =
      EncodeHead(piece, scatter.PackedBytes(file, piece.begin, piece.end));
  scatter.AppendPacked(file, offset, bytes, &body);
  SealPiece(&body);
  if (to.under_way.empty()) to.since = clock_->Monotonic();
  Send(to, body);
  to.under_way.push_back(body.size());
  to.bytes_under_way += body.size();
  bytes_under_way_ += body.size();
  bytes_sent_ += body.size();
}

void Exchange::EndReads() {
  reads_ended_ = true;
  SendQueued();
}

bool Exchange::all_sent() const {
  return reads_ended_ && bytes_queued_ == 0 &&
         std::all_of(receivers_.begin(), receivers_.end(),
                     [](const Receiver& to) { return to.ended; });
}

void Exchange::Send(Receiver& to, std::span<const std::byte> body) {
  MessageTag tag = tag_;
  tag.phase = kPhasePiece;
  group_->Send(to.rank, tag, body);
  to.spoken = clock_->Monotonic();
}

// In turn, one piece each, as long as the bounds allow.
void Exchange::SendQueued() {
  for (bool sent = true; sent && status_.ok();) {
    sent = false;
    for (size_t n = 0; n < receivers_.size(); ++n) {
      const size_t i = (first_ + n) % receivers_.size();
      Receiver& to = receivers_[i];
      if (to.queue.empty()) continue;
      const Piece& piece = to.queue.front();
      const Read& read = *piece.read;
      if (!MaySend(to, reads_->receivers()[i].PackedBytes(
                           read.file, piece.begin, piece.end))) {
        continue;
      }
      SendPiece(
          i, read.file, piece.begin,
          std::span(read.bytes)
              .subspan(piece.begin - read.offset, piece.end - piece.begin));
      // The last that waits for it.
      if (piece.read.use_count() == 1) bytes_queued_ -= read.bytes.size();
      to.queue.pop_front();
      sent = true;
    }
  }
  if (!reads_ended_ || !status_.ok()) return;
  for (Receiver& to : receivers_) {
    if (to.ended || !to.queue.empty()) continue;
    PieceMessage end;
    end.kind = PieceMessage::Kind::kEnd;
    end.number = to.pieces;
    std::vector<std::byte> body = EncodeHead(end, 0);
    SealPiece(&body);
    Send(to, body);
    to.ended = true;
  }
}

void Exchange::OnTaken(const Message& message) {
  const auto taken = DecodeTaken(message.body);
  const auto to =
      std::find_if(receivers_.begin(), receivers_.end(),
                   [&](const Receiver& r) { return r.rank == message.from; });
  if (!taken.ok() || to == receivers_.end() ||
      *taken > to->taken + to->under_way.size()) {
    return GiveUp(absl::StrFormat(
        "%s has taken what was not sent; do all ranks run the same program?",
        NameOf(message.from)));
  }
  to->since = clock_->Monotonic();
  for (; to->taken < *taken; ++to->taken) {
    to->bytes_under_way -= to->under_way.front();
    bytes_under_way_ -= to->under_way.front();
    to->under_way.pop_front();
  }
  SendQueued();
}

// --- In --------------------------------------------------------------------

void Exchange::OnMessage(const Message& message) {
  if (!status_.ok()) return;
  if (plan_ == nullptr) {
    early_.push_back(message);
  } else if (message.tag.phase == kPhasePieceTaken) {
    OnTaken(message);
  } else {
    OnPiece(message);
  }
}

void Exchange::OnPiece(const Message& message) {
  const std::string name = NameOf(message.from);
  std::span<const std::byte> packed;
  const auto piece = DecodePiece(message.body, &packed);
  if (!piece.ok()) {
    return GiveUp(absl::StrFormat("from %s: %s", name,
                                  std::string(piece.status().message())));
  }
  const auto found = senders_.find(message.from);
  if (found == senders_.end() || found->second.ended) {
    return GiveUp(absl::StrFormat("%s sends what nobody asked it for", name));
  }
  Sender& sender = found->second;
  sender.since = clock_->Monotonic();
  if (piece->kind == PieceMessage::Kind::kAlive) return;
  const bool is_end = piece->kind == PieceMessage::Kind::kEnd;
  if (piece->number != sender.pieces + (is_end ? 0 : 1)) {
    return GiveUp(absl::StrFormat(
        "%s sent piece %d, and %d pieces had come: one got lost", name,
        piece->number, sender.pieces));
  }
  if (is_end) {
    sender.ended = true;
    --senders_left_;
    return;
  }
  const Scatter& own = reads_->own();
  if (packed.size() != own.PackedBytes(piece->file, piece->begin, piece->end)) {
    return GiveUp(absl::StrFormat(
        "%s sent %d bytes of file %d, %d-%d, where %d are wanted", name,
        packed.size(), piece->file, piece->begin, piece->end,
        own.PackedBytes(piece->file, piece->begin, piece->end)));
  }
  if (!NoteRange(piece->file, piece->begin, piece->end)) {
    return GiveUp(absl::StrFormat("bytes %d-%d of file %d came twice, from %s",
                                  piece->begin, piece->end, piece->file, name));
  }
  if (put_ != nullptr) {
    own.ScatterPacked(piece->file, piece->begin, piece->end, packed, put_);
  } else {
    own.ScatterPacked(piece->file, piece->begin, piece->end, packed, regions_);
  }
  ++sender.pieces;
  sender.bytes += packed.size();
  bytes_received_ += packed.size();
  MessageTag tag = tag_;
  tag.phase = kPhasePieceTaken;
  group_->Send(message.from, tag, EncodeTaken(sender.pieces));
}

bool Exchange::NoteRange(uint32_t file, uint64_t begin, uint64_t end) {
  auto next = ranges_.lower_bound({file, begin});
  if (next != ranges_.end() && next->first.first == file &&
      next->first.second < end) {
    return false;
  }
  if (next != ranges_.end() && next->first == std::pair(file, end)) {
    end = next->second;
    next = ranges_.erase(next);
  }
  if (next != ranges_.begin()) {
    const auto before = std::prev(next);
    if (before->first.first == file) {
      if (before->second > begin) return false;
      if (before->second == begin) {
        before->second = end;
        return true;
      }
    }
  }
  ranges_[{file, begin}] = end;
  return true;
}

// --- The clock -------------------------------------------------------------

void Exchange::Poll() {
  if (plan_ == nullptr || !status_.ok()) return;
  LookAtTheClock();
}

void Exchange::LookAtTheClock() {
  const absl::Duration now = clock_->Monotonic();
  for (const Receiver& to : receivers_) {
    if (to.under_way.empty() || now - to.since < options_.silence) continue;
    return GiveUp(absl::StrFormat(
        "%s has taken %d of %d pieces of what this rank read for it, and none "
        "for %s",
        NameOf(to.rank), to.taken, to.pieces,
        absl::FormatDuration(now - to.since)));
  }
  // A reader that waits for a third rank says so first.
  const absl::Duration patience = options_.silence * 3 / 2;
  for (const auto& [rank, sender] : senders_) {
    if (sender.ended || now - sender.since < patience) continue;
    return GiveUp(absl::StrFormat(
        "%s reads for this rank; %d pieces (%d bytes) of it have come, and "
        "nothing for %s",
        NameOf(rank), sender.pieces, sender.bytes,
        absl::FormatDuration(now - sender.since)));
  }
  // Reading goes on, and was not for them.
  if (!moved_) return;
  bool is_due = false;
  for (const Receiver& to : receivers_) {
    is_due |= !to.ended && now - to.spoken > options_.silence / 4;
  }
  if (!is_due) return;
  moved_ = false;
  PieceMessage alive;
  alive.kind = PieceMessage::Kind::kAlive;
  std::vector<std::byte> body = EncodeHead(alive, 0);
  SealPiece(&body);
  for (Receiver& to : receivers_) {
    if (!to.ended) Send(to, body);
  }
}

void Exchange::GiveUp(std::string why) {
  if (!status_.ok()) return;
  at_fault_ = true;
  Fail(absl::UnavailableError("exchanging what was read: " + why));
}

void Exchange::Fail(absl::Status status) {
  if (!status_.ok()) return;
  status_ = std::move(status);
  early_.clear();
  for (Receiver& to : receivers_) to.queue.clear();
  bytes_queued_ = 0;
}

}  // namespace holdfast::ckpt
