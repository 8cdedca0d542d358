// One numerical fault: where it was first seen, and in what. What an error object, a capture and the log have in
// common.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace plumb {

enum class FaultKind : uint8_t { Nan, Inf, Drift };
std::string_view to_string(FaultKind kind);  // nan | inf | drift

struct Incident {
  std::string id{};  // also the name of its capture
  FaultKind kind = FaultKind::Nan;
  uint64_t step = 0;
  int pass = 0;  // of the step: 0 the model itself, then the passes of the draft layer
  int rank = 0;
  int layer = -1;  // -1: outside the layers
  std::string site{}, op{}, kernel{}, tensor{};
  int row = -1;       // of the step
  int position = -1;  // of the row's token in its sequence
  int64_t column = -1;
  double have = 0, want = 0, bound = 0;  // drift only
  std::string request_id{};
  bool captured = false;
  bool repeated = true;  // false: on a device, and gone when the step was run again

  // "layers.2.self_attn.attend (mla_attend, KERNEL) wrote NaN to out[17], step 12, row 3, position 70"
  std::string to_string() const;
};
nlohmann::ordered_json to_json(const Incident& incident);

}  // namespace plumb
