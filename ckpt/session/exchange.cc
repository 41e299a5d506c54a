// ckpt/session/exchange.cc: pieces out, pieces in, and who is silent.

#include "ckpt/session/exchange.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/session/exchange_messages.h"
#include "ckpt/session/messages.h"

namespace holdfast::ckpt {

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
                     std::span<const std::span<std::byte>> regions) {
  plan_ = plan;
  reads_ = reads;
  regions_.assign(regions.begin(), regions.end());
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
  for (const Message& message : std::exchange(early_, {})) OnMessage(message);
}

// --- Out -------------------------------------------------------------------

void Exchange::Take(uint32_t file, uint64_t offset,
                    std::span<const std::byte> bytes) {
  if (!status_.ok()) return;
  moved_ = true;
  if (!NoteRange(file, offset, offset + bytes.size())) {
    GiveUp(
        absl::StrFormat("bytes %d-%d of file %d came from another rank and "
                        "were read here too",
                        offset, offset + bytes.size(), file));
    return;
  }
  for (size_t i = 0; i < receivers_.size(); ++i) {
    const uint64_t wanted =
        reads_->receivers()[i].PackedBytes(file, offset, offset + bytes.size());
    if (wanted == 0) continue;
    // Cut evenly, so that a piece has some piece_bytes whatever share of the
    // range is wanted.
    const uint64_t pieces =
        (wanted + options_.piece_bytes - 1) / options_.piece_bytes;
    const uint64_t step = (bytes.size() + pieces - 1) / pieces;
    for (uint64_t at = 0; at < bytes.size(); at += step) {
      Queue(i, file, offset + at,
            bytes.subspan(at, std::min<uint64_t>(step, bytes.size() - at)));
    }
  }
  SendQueued();
}

void Exchange::Queue(size_t receiver, uint32_t file, uint64_t offset,
                     std::span<const std::byte> bytes) {
  const Scatter& scatter = reads_->receivers()[receiver];
  Receiver& to = receivers_[receiver];
  PieceMessage piece;
  piece.file = file;
  piece.begin = offset;
  piece.end = offset + bytes.size();
  const uint64_t size = scatter.PackedBytes(file, piece.begin, piece.end);
  if (size == 0) return;
  piece.number = ++to.pieces;
  std::vector<std::byte> body = EncodeHead(piece, size);
  scatter.AppendPacked(file, offset, bytes, &body);
  SealPiece(&body);
  bytes_queued_ += body.size();
  to.queue.push_back(std::move(body));
  bytes_held_most_ =
      std::max(bytes_held_most_, bytes_queued_ + bytes_under_way_);
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
  const uint64_t each_max =
      options_.bytes_max / std::max<size_t>(1, receivers_.size());
  for (bool sent = true; sent && status_.ok();) {
    sent = false;
    for (size_t i = 0; i < receivers_.size(); ++i) {
      Receiver& to = receivers_[(first_ + i) % receivers_.size()];
      if (to.queue.empty()) continue;
      const uint64_t size = to.queue.front().size();
      // One piece may always be under way, to each.
      if (to.bytes_under_way > 0 && to.bytes_under_way + size > each_max) {
        continue;
      }
      if (to.under_way.empty()) to.since = clock_->Monotonic();
      Send(to, to.queue.front());
      to.queue.pop_front();
      to.under_way.push_back(size);
      to.bytes_under_way += size;
      bytes_under_way_ += size;
      bytes_queued_ -= size;
      bytes_sent_ += size;
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
  own.ScatterPacked(piece->file, piece->begin, piece->end, packed, regions_);
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
