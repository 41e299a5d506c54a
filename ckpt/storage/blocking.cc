// ckpt/storage/blocking.cc: call, poll until answered, return.

#include "ckpt/storage/blocking.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"

namespace holdfast::ckpt {

Completion Blocking::Await(OpTag tag) {
  for (int64_t polls = 0; polls_max_ == 0 || polls < polls_max_; ++polls) {
    Completion answer;
    if (storage_.Poll({&answer, 1}) == 0) {
      storage_.WaitForCompletion(/*wait_ms=*/100);
      continue;
    }
    HF_CHECK(answer.tag == tag, "an answer to another call came first: tag %d",
             static_cast<uint64_t>(answer.tag));
    return answer;
  }
  return {tag,
          absl::DeadlineExceededError(absl::StrFormat(
              "no answer from the storage after %d polls", polls_max_)),
          0};
}

absl::Status Blocking::Create(std::string_view name, FileId file,
                              uint64_t size_expected) {
  const OpTag tag = NextTag();
  storage_.Create(name, file, size_expected, tag);
  return Await(tag).status;
}

absl::StatusOr<uint64_t> Blocking::OpenForWrite(std::string_view name,
                                                FileId file) {
  const OpTag tag = NextTag();
  storage_.OpenForWrite(name, file, tag);
  Completion answer = Await(tag);
  if (!answer.status.ok()) return std::move(answer.status);
  return answer.bytes;
}

absl::Status Blocking::Write(FileId file, uint64_t offset,
                             std::span<const std::byte> data) {
  const OpTag tag = NextTag();
  storage_.Write(file, offset, data, tag);
  return Await(tag).status;
}

absl::Status Blocking::Sync(FileId file) {
  const OpTag tag = NextTag();
  storage_.Sync(file, tag);
  return Await(tag).status;
}

absl::Status Blocking::Close(FileId file) {
  const OpTag tag = NextTag();
  storage_.Close(file, tag);
  return Await(tag).status;
}

absl::Status Blocking::MakeDir(std::string_view name) {
  const OpTag tag = NextTag();
  storage_.MakeDir(name, tag);
  return Await(tag).status;
}

absl::Status Blocking::SyncDir(std::string_view name) {
  const OpTag tag = NextTag();
  storage_.SyncDir(name, tag);
  return Await(tag).status;
}

absl::Status Blocking::Rename(std::string_view from, std::string_view to) {
  const OpTag tag = NextTag();
  storage_.Rename(from, to, tag);
  return Await(tag).status;
}

absl::Status Blocking::Remove(std::string_view name) {
  const OpTag tag = NextTag();
  storage_.Remove(name, tag);
  return Await(tag).status;
}

absl::StatusOr<uint64_t> Blocking::FreeSpace(std::string_view dir) {
  const OpTag tag = NextTag();
  storage_.FreeSpace(dir, tag);
  const Completion answer = Await(tag);
  if (!answer.status.ok()) return answer.status;
  return answer.bytes;
}

absl::Status Blocking::PutIfAbsent(std::string_view name,
                                   std::span<const std::byte> contents) {
  const OpTag tag = NextTag();
  storage_.PutIfAbsent(name, contents, tag);
  return Await(tag).status;
}

absl::StatusOr<uint64_t> Blocking::Open(std::string_view name, FileId file) {
  const OpTag tag = NextTag();
  storage_.Open(name, file, tag);
  Completion answer = Await(tag);
  if (!answer.status.ok()) return std::move(answer.status);
  return answer.bytes;
}

absl::StatusOr<uint64_t> Blocking::Read(FileId file, uint64_t offset,
                                        std::span<std::byte> out) {
  const OpTag tag = NextTag();
  storage_.Read(file, offset, out, tag);
  Completion answer = Await(tag);
  if (!answer.status.ok()) return std::move(answer.status);
  return answer.bytes;
}

absl::StatusOr<std::vector<DirEntry>> Blocking::List(std::string_view dir) {
  const OpTag tag = NextTag();
  std::vector<DirEntry> result;
  storage_.List(dir, &result, tag);
  Completion answer = Await(tag);
  if (!answer.status.ok()) return std::move(answer.status);
  return result;
}

absl::StatusOr<std::vector<std::byte>> Blocking::Get(std::string_view name,
                                                     uint64_t size_max) {
  const OpTag tag = NextTag();
  std::vector<std::byte> result;
  storage_.Get(name, size_max, &result, tag);
  Completion answer = Await(tag);
  if (!answer.status.ok()) return std::move(answer.status);
  return result;
}

}  // namespace holdfast::ckpt
