// Names of faults, and where each can live.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "guard/fault.h"
#include "model/rank_link.h"

namespace plumb {
namespace {

constexpr std::array<std::string_view, kPlantedKindCount> kNames = {"nan",
                                                                    "inf",
                                                                    "scale_format",
                                                                    "nibble_order",
                                                                    "block_offset",
                                                                    "kv_scale_dropped",
                                                                    "rope_halves",
                                                                    "rope_theta",
                                                                    "topk_off_by_one",
                                                                    "topk_pattern_short",
                                                                    "router_bias_dropped",
                                                                    "stale_graph_row",
                                                                    "missing_fence",
                                                                    "expert_swapped",
                                                                    "rank_skew"};

bool weighs(Op op) {
  return op == Op::Embed || op == Op::Linear || op == Op::MlaAttend || op == Op::Router || op == Op::Mlp ||
         op == Op::Moe;
}
bool rotates(Op op) { return op == Op::Rope || op == Op::KvWrite || op == Op::IndexQuery || op == Op::IndexKeyWrite; }

template <class Int>
bool read_number(std::string_view text, Int& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

bool set_key(std::string_view key, std::string_view value, Fault& fault) {
  if (key == "phase") {
    fault.phase = value == "prefill" ? FaultPhase::Prefill : FaultPhase::Decode;
    return value == "prefill" || value == "decode";
  }
  if (key == "kernel") {
    fault.kernel = value;
    return !value.empty();
  }
  int hot = 0;
  if (key == "hot") {
    const bool read = read_number(value, hot);
    fault.only_hot = hot == 1;
    return read && fault.only_hot;
  }
  if (key == "row") return read_number(value, fault.row) && fault.row >= 0;
  if (key == "rows") return read_number(value, fault.rows) && fault.rows > 0;
  if (key == "from") return read_number(value, fault.from_position) && fault.from_position >= 0;
  if (key == "rank") return read_number(value, fault.rank) && fault.rank >= 0;
  if (key == "column") return read_number(value, fault.column) && fault.column >= 0;
  return key == "after" && read_number(value, fault.after) && fault.after >= 0;
}

}  // namespace

std::string_view to_string(PlantedKind kind) { return kNames[static_cast<size_t>(kind)]; }

std::string Fault::to_string() const {
  std::string text = fmt::format("{}@{}", plumb::to_string(kind), place);
  if (phase != FaultPhase::Any) text += phase == FaultPhase::Prefill ? ",phase=prefill" : ",phase=decode";
  if (row >= 0) text += fmt::format(",row={}", row);
  if (rows > 0) text += fmt::format(",rows={}", rows);
  if (from_position > 0) text += fmt::format(",from={}", from_position);
  if (only_hot) text += ",hot=1";
  if (rank >= 0) text += fmt::format(",rank={}", rank);
  if (column > 0) text += fmt::format(",column={}", column);
  if (after > 0) text += fmt::format(",after={}", after);
  if (!kernel.empty()) text += ",kernel=" + kernel;
  return text;
}

Result<Fault> parse_fault(std::string_view text) {
  Fault fault;
  const auto refuse = [&](std::string why, std::vector<std::string> works) {
    return Error{Code::Usage, fmt::format("'{}' is not a fault", text), std::move(why), std::move(works)};
  };
  const size_t at = text.find('@');
  const auto name = std::find(kNames.begin(), kNames.end(), text.substr(0, at));
  if (at == std::string_view::npos || name == kNames.end())
    return refuse("it does not begin with KIND@PLACE", {kNames.begin(), kNames.end()});
  fault.kind = static_cast<PlantedKind>(name - kNames.begin());
  std::string_view rest = text.substr(at + 1);
  fault.place = rest.substr(0, rest.find(','));
  if (fault.place.empty()) return refuse("it names no place", {"a place of plumb plan MODEL --json", "an op"});
  while (rest.find(',') != std::string_view::npos) {
    rest.remove_prefix(rest.find(',') + 1);
    const std::string_view pair = rest.substr(0, rest.find(','));
    const size_t equals = pair.find('=');
    if (equals == std::string_view::npos || !set_key(pair.substr(0, equals), pair.substr(equals + 1), fault))
      return refuse(fmt::format("'{}' is no condition", pair),
                    {"phase=prefill", "phase=decode", "row=N", "rows=N", "from=POSITION", "hot=1", "column=N",
                     "after=LAUNCHES", "kernel=NAME", "rank=N"});
  }
  return fault;
}

std::string why_not(PlantedKind kind, const Call& call) {
  const auto needs = [](bool there, const char* what) { return there ? std::string() : std::string(what); };
  const Op op = call.op;
  if (op == Op::DraftSet) return "its rows are sequences";
  const bool scaled = weighs(op) && call.weight.quantised();
  switch (kind) {
    case PlantedKind::Nan:
    case PlantedKind::Inf:
      return needs(op != Op::TopK && op != Op::FiniteRows, "its outputs are whole numbers");
    case PlantedKind::ScaleFormat:
      return needs(scaled, "its weight has no block scales");
    case PlantedKind::NibbleOrder:
      return needs(weighs(op) && call.weight.element == DType::F4E2M1, "its weight has no 4-bit elements");
    case PlantedKind::BlockOffset:
      return needs(scaled && call.weight.block_k + call.weight.block_n > 0, "its weight has one scale at most");
    case PlantedKind::KvScaleDropped:
      if (op == Op::KvWrite || op == Op::MlaAttend)
        return needs(call.kv == KvFormat::Fp8Tile128, "the latent cache has no scales");
      if (op == Op::IndexKeyWrite || op == Op::IndexerLogits)
        return needs(call.index_key == IndexKeyFormat::Fp8, "the index-key cache has no scales");
      return "it neither reads nor writes a cache";
    case PlantedKind::RopeHalves:
    case PlantedKind::RopeTheta:
      return needs(rotates(op), "it rotates nothing");
    case PlantedKind::TopkOffByOne:
      return needs(op == Op::TopK || op == Op::MlaAttend, "it selects nothing");
    case PlantedKind::TopkPatternShort:
      return needs(op == Op::TopK, "it selects nothing");
    case PlantedKind::RouterBiasDropped:
      return needs(op == Op::Router, "it is no router");
    case PlantedKind::ExpertSwapped:
      return needs(op == Op::Router || op == Op::Moe, "it has no experts");
    case PlantedKind::StaleGraphRow:
    case PlantedKind::MissingFence:
      return needs(op != Op::Sample, "its outputs are no tensors");
    case PlantedKind::RankSkew:
      return needs(is_replicated(op), "each rank computes its own share there");
  }
  return "unknown";
}

}  // namespace plumb
