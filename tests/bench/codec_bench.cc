// tests/bench/codec_bench.cc: what compression gains on a state, and what it
// costs one core.
//
// Reads the newest checkpoint of --run (or RUN@STEP, or a checkpoint's
// directory), takes up to --mib MiB of each kind of item from it (weight,
// master, exp_avg, ...), unit by unit of up to 1 MiB as a save does, and codes
// them in each variant --rounds times, the variants in turn. One JSON line per
// variant and kind, and per variant over all kinds in the proportion in which
// the checkpoint stores them: the ratio, and the medians of the speeds, in GB
// of plain bytes a second of the thread's processor time, so that other work on
// the machine hardly matters.
//
//   bench_codec --run RUN [--mib 32] [--rounds 5] [--levels 0,1,3]
//
// A save gains where the disk is slower than coding: coded, it takes the longer
// of plain / compress and plain / (ratio * disk); plain, it takes plain / disk.

#include <time.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "ckpt/base/check.h"
#include "ckpt/base/clock.h"
#include "ckpt/format/codec.h"
#include "ckpt/format/manifest.h"
#include "ckpt/format/shard.h"
#include "ckpt/session/catalog.h"
#include "ckpt/session/catalog_locate.h"
#include "ckpt/session/io.h"
#include "ckpt/session/unit_reader.h"

namespace holdfast::ckpt {
namespace {

using Bytes = std::vector<std::byte>;

// Some bytes of one kind, and how many the checkpoint has.
struct Sample {
  int width = 1;  // of an element
  uint64_t bytes_all = 0;
  std::vector<Bytes> units;
};
using Samples = std::map<std::string, Sample>;

absl::Duration ProcessorTime() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return absl::DurationFromTimespec(now);
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Reads a checkpoint and keeps what a bench needs of it.
class SampleSession final : public Session {
 public:
  SampleSession(const SessionEnv& env, std::string dir, uint64_t bytes_max)
      : io_(env), dir_(std::move(dir)), bytes_max_(bytes_max) {
    fiber_.Start(Run());
  }
  void OnCompletion(const Completion& completion) override {
    io_.OnCompletion(completion);
  }
  bool OnMessage(const Message&) override { return false; }
  void Poll() override { fiber_.Poll(); }
  bool done() const override { return fiber_.done() && io_.idle(); }

  absl::Status status;
  Samples samples;

 private:
  Task<bool> Run() {
    Bytes encoded;
    auto manifest = co_await ReadManifest(&io_, dir_, &encoded);
    status = manifest.status();
    if (!status.ok()) co_return true;
    const Manifest& m = **manifest;
    UnitReader reader(&io_, dir_, &m, {});
    std::vector<FileWant> wants;
    for (uint32_t file = 0; file < m.files.size(); ++file) {
      for (const Chunk& chunk : m.files[file].chunks) {
        samples[m.items[chunk.item].kind].bytes_all += chunk.bytes_stored;
      }
      wants.push_back({file, PickAll()});
    }
    UnitReader::Sink sink = [this, &m](uint32_t file, uint64_t offset,
                                       std::span<const std::byte> bytes) {
      for (const Chunk& chunk : m.files[file].chunks) {
        const uint64_t from = std::max(chunk.offset, offset);
        const uint64_t to =
            std::min(chunk.offset + chunk.bytes_stored, offset + bytes.size());
        if (from >= to) continue;
        const ItemSpec& item = m.items[chunk.item];
        Keep(item.kind, SizeOf(item.dtype),
             bytes.subspan(from - offset, to - from));
      }
    };
    status = co_await reader.Read(std::move(wants), std::move(sink));
    co_return true;
  }

  // Whole elements, up to the unit's end or the next unit.
  void Keep(const std::string& kind, int width,
            std::span<const std::byte> bytes) {
    Sample& sample = samples[kind];
    sample.width = width;
    while (!bytes.empty()) {
      if (sample.units.empty() || sample.units.back().size() == kUnitBytesMax) {
        if (sample.units.size() * kUnitBytesMax >= bytes_max_) return;
        sample.units.emplace_back().reserve(kUnitBytesMax);
      }
      Bytes& unit = sample.units.back();
      const size_t taken =
          std::min<size_t>(bytes.size(), kUnitBytesMax - unit.size());
      unit.insert(unit.end(), bytes.begin(), bytes.begin() + taken);
      bytes = bytes.subspan(taken);
    }
  }

  Io io_;
  const std::string dir_;
  const uint64_t bytes_max_;
  Fiber fiber_;
};

struct Variant {
  std::string name;
  int level = -1;  // -1: not compressed: planes alone
  bool planes = true;
};

struct Figures {
  double bytes = 0, stored = 0;
  std::vector<double> encode_s, decode_s;
};

class Coder {
 public:
  explicit Coder(const Variant& variant)
      : variant_(variant), decoder_(kUnitBytesMax), out_(kUnitBytesMax) {
    if (variant.level >= 0) {
      encoder_ = std::make_unique<ZstdEncoder>(variant.level, kUnitBytesMax);
    }
  }

  // One pass over a sample, to frames and back.
  void Pass(const Sample& sample, Figures* figures) {
    const int width = variant_.planes ? sample.width : 1;
    // As a save has them: memory that is there and was written before.
    while (frames_.size() < sample.units.size()) {
      frames_.emplace_back(kUnitBytesMax, std::byte{1});
    }
    sizes_.resize(frames_.size());
    double stored = 0, bytes = 0;
    absl::Duration begin = ProcessorTime();
    for (size_t i = 0; i < sample.units.size(); ++i) {
      const Bytes& unit = sample.units[i];
      const auto frame = std::span(frames_[i]).first(unit.size());
      if (encoder_ != nullptr) {
        sizes_[i] = encoder_->Encode(unit, width, frame);
      } else {
        SplitPlanes(unit, width, frame);
        sizes_[i] = unit.size();
      }
      bytes += unit.size();
      // As stored: in blocks, or plain when that is not fewer.
      const double blocks = RoundUp(sizes_[i], kShardBlockBytes);
      stored +=
          sizes_[i] == 0 ? unit.size() : std::min<double>(blocks, unit.size());
    }
    absl::Duration now = ProcessorTime();
    figures->encode_s.push_back(absl::ToDoubleSeconds(now - begin));
    begin = now;
    for (size_t i = 0; i < sample.units.size(); ++i) {
      const Bytes& unit = sample.units[i];
      const auto out = out_.span().first(unit.size());
      const auto frame = std::span(frames_[i]).first(sizes_[i]);
      if (frame.empty()) {
        std::copy(unit.begin(), unit.end(), out.begin());
      } else if (encoder_ != nullptr) {
        const absl::Status status = decoder_.Decode(frame, width, out);
        HF_CHECK(status.ok(), "%s", status.ToString());
      } else {
        JoinPlanes(frame, width, out);
      }
      HF_CHECK(out.back() == unit.back(), "other bytes came back");
    }
    now = ProcessorTime();
    figures->decode_s.push_back(absl::ToDoubleSeconds(now - begin));
    figures->bytes = bytes;
    figures->stored = stored;
  }

 private:
  const Variant variant_;
  std::unique_ptr<ZstdEncoder> encoder_;
  ZstdDecoder decoder_;
  AlignedBuffer out_;
  std::vector<Bytes> frames_;
  std::vector<size_t> sizes_;
};

void Print(const Variant& variant, const std::string& kind, double bytes,
           double stored, double encode_s, double decode_s) {
  std::printf(
      "{\"bench\":\"codec\",\"variant\":\"%s\",\"level\":%d,\"planes\":%s,"
      "\"kind\":\"%s\",\"bytes\":%.0f,\"ratio\":%.3f,"
      "\"compress_gb_per_s\":%.3f,\"decompress_gb_per_s\":%.3f}\n",
      variant.name.c_str(), variant.level, variant.planes ? "true" : "false",
      kind.c_str(), bytes, bytes / stored, bytes / encode_s * 1e-9,
      bytes / decode_s * 1e-9);
}

int Main(int argc, char** argv) {
  CLI::App app{"compression of a real state: ratio and speed on one core"};
  std::string run;
  size_t mib = 32;
  int rounds = 5;
  std::vector<int> levels = {0, 1, 3};
  app.add_option("--run", run)->required();
  app.add_option("--mib", mib, "of each kind, at most")
      ->check(CLI::Range(1, 65536));
  app.add_option("--rounds", rounds)->check(CLI::Range(1, 1000));
  app.add_option("--levels", levels)
      ->delimiter(',')
      ->check(CLI::Range(kZstdLevelMin, ZstdLevelMax()));
  CLI11_PARSE(app, argc, argv);

  StorageOptions storage;
  storage.queue_depth = 16;
  auto place = LocateCheckpoint(run, storage, RealClock());
  if (!place.ok()) {
    std::fprintf(stderr, "bench_codec: %s\n",
                 std::string(place.status().message()).c_str());
    return 66;
  }
  SessionEnv env;
  env.storage = place->storage.get();
  env.clock = &RealClock();
  env.space = 1;
  env.ops_max = 16;
  SampleSession session(env, place->dir, mib << 20);
  RunAlone(place->storage.get(), &RealClock(), &session);
  if (!session.status.ok()) {
    std::fprintf(stderr, "bench_codec: %s\n",
                 std::string(session.status.message()).c_str());
    return 74;
  }

  std::vector<Variant> variants = {{"planes alone", -1, true}};
  for (const int level : levels) {
    variants.push_back({absl::StrFormat("zstd %d", level), level, false});
    variants.push_back(
        {absl::StrFormat("planes, zstd %d", level), level, true});
  }
  std::vector<std::map<std::string, Figures>> figures(variants.size());
  for (int round = 0; round < rounds; ++round) {
    for (size_t v = 0; v < variants.size(); ++v) {
      Coder coder(variants[v]);
      for (const auto& [kind, sample] : session.samples) {
        coder.Pass(sample, &figures[v][kind]);
      }
    }
  }
  for (size_t v = 0; v < variants.size(); ++v) {
    double bytes = 0, stored = 0, encode_s = 0, decode_s = 0;
    for (const auto& [kind, f] : figures[v]) {
      const double encode = Median(f.encode_s), decode = Median(f.decode_s);
      Print(variants[v], kind, f.bytes, f.stored, encode, decode);
      const double all = session.samples[kind].bytes_all;
      bytes += all;
      stored += all * f.stored / f.bytes;
      encode_s += all * encode / f.bytes;
      decode_s += all * decode / f.bytes;
    }
    Print(variants[v], "all", bytes, stored, encode_s, decode_s);
  }
  return 0;
}

}  // namespace
}  // namespace holdfast::ckpt

int main(int argc, char** argv) { return holdfast::ckpt::Main(argc, argv); }
