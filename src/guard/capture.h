// Captures: one op's inputs and outputs of one row on disk, enough to run it again with the model at hand. A file is a
// safetensors container whose metadata says what it is; its name is the incident's id. Token ids go in only when the
// operator allows it: they are the user's text.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "guard/incident.h"
#include "guard/op_record.h"
#include "model/model.h"

namespace plumb {

class JobPool;

// What a capture says of the process it came from.
struct CaptureOrigin {
  std::string build{}, checkpoint{}, plan{};  // identities
};

inline constexpr std::string_view kCaptureSuffix = ".capture.safetensors";

// `tokens`: of the sequence up to the row's position; empty: not told.
Status write_capture(const std::filesystem::path& path, const Incident& incident, const OpRecord& record,
                     const CaptureOrigin& origin, std::span<const int32_t> tokens);

struct Capture {
  nlohmann::json facts();  // incident, origin, tokens
  std::string facts_text{};
  std::string site{}, kernel{};
  OpRecord record;
};
// Reads a capture for a model whose plan has the same place. Errors: Corrupt for a file that is none, Unsupported for a
// place or kernel that the plan or the registry does not have.
Result<Capture> read_capture(const std::filesystem::path& path, const Plan& plan, const Registry& registry,
                             const ModelSites& sites, const ModelWeights& weights);

// The token ids that a capture holds, up to its row's position; none when they were not to be written.
Result<std::vector<int32_t>> captured_tokens(const std::filesystem::path& path);

struct CaptureLimits {
  std::filesystem::path folder{};  // empty: no captures
  int max_files = 16;
  int64_t max_bytes = int64_t{256} << 20;
  bool with_tokens = false;
};

// Writes captures on a thread of its own until the folder holds as many, or as large ones, as allowed; what is there
// already counts. Older ones are never removed: the first is closest to the cause.
class CaptureStore {
 public:
  CaptureStore(CaptureLimits limits, CaptureOrigin origin);
  ~CaptureStore();

  // False when there is no room (or no folder): the incident has no capture.
  bool add(const Incident& incident, OpRecord record, std::span<const int32_t> tokens);
  uint64_t written() const { return written_; }
  uint64_t dropped() const { return dropped_; }

 private:
  const CaptureLimits limits_;
  const CaptureOrigin origin_;
  int files_ = 0;
  int64_t bytes_ = 0;
  std::mutex mutex_{};
  std::atomic<uint64_t> written_{0}, dropped_{0};
  std::unique_ptr<JobPool> writer_{};
};

}  // namespace plumb
