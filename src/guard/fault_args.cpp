#include "guard/fault_args.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "model/model_config.h"
#include "tensor/encode.h"

namespace plumb {
namespace {

// ---- weights ----

template <class Args>
bool misread(Args&, const Fault&, const FaultContext&, FaultyArgs&) {
  return false;
}
bool misread(EmbedArgs& a, const Fault& f, const FaultContext& c, FaultyArgs&) {
  a.table = &c.weights.get(*a.table, f.kind, c.executor);
  return true;
}
bool misread(LinearArgs& a, const Fault& f, const FaultContext& c, FaultyArgs&) {
  a.w = &c.weights.get(*a.w, f.kind, c.executor);
  return true;
}
bool misread(MlaAttendArgs& a, const Fault& f, const FaultContext& c, FaultyArgs&) {
  a.kv_b = &c.weights.get(*a.kv_b, f.kind, c.executor);
  return true;
}
bool misread(RouterArgs& a, const Fault& f, const FaultContext& c, FaultyArgs&) {
  a.gate = &c.weights.get(*a.gate, f.kind, c.executor);
  return true;
}
bool misread(MlpArgs& a, const Fault& f, const FaultContext& c, FaultyArgs&) {
  for (const Weight** w : {&a.gate, &a.up, &a.down}) *w = &c.weights.get(**w, f.kind, c.executor);
  return true;
}
bool misread(MoeArgs& a, const Fault& f, const FaultContext& c, FaultyArgs& out) {
  for (std::span<const Weight>* experts : {&a.gate, &a.up, &a.down}) {
    std::vector<Weight>& wrong = out.weights.emplace_back();
    for (const Weight& w : *experts) wrong.push_back(c.weights.get(w, f.kind, c.executor));
    *experts = wrong;
  }
  return true;
}

// ---- cache scales ----

constexpr float kNoScale = 1.0f;

// Pages 0 ... the largest in use, copied to where `edit` may change them.
template <class Edit>
std::byte* changed_pages(const std::byte* base, int64_t page_bytes, const FaultContext& c, Edit edit) {
  int32_t last = 0;
  for (int r = 0; r < c.pass.rows; ++r) {
    if (c.pass.sequence[r] < 0) continue;
    for (int32_t at = 0; at <= c.pass.positions[r]; at += c.pass.page_tokens)
      last = std::max(last, c.pass.page(c.pass.sequence[r], at));
  }
  std::vector<std::byte> pages(static_cast<size_t>((int64_t{last} + 1) * page_bytes));
  c.memory.get(pages.data(), base, pages.size());
  for (int64_t page = 0; page <= last; ++page) edit(pages.data() + page * page_bytes);
  return c.memory.copy(pages.data(), pages.size());
}

void drop_latent_scales(const KvGeometry& g, std::byte* page) {
  const int64_t row_bytes = g.latent_row_bytes();
  for (int token = 0; token < g.page_tokens; ++token)
    for (int begin = 0; begin < g.kv_lora_rank; begin += 128)
      std::memcpy(page + token * row_bytes + g.kv_lora_rank + begin / 128 * 4, &kNoScale, 4);
}
void drop_index_scales(const KvGeometry& g, std::byte* page) {
  for (int token = 0; token < g.page_tokens; ++token)
    std::memcpy(page + int64_t{g.page_tokens} * g.index_head_dim + token * 4, &kNoScale, 4);
}

template <class Args>
bool drop_scales(Args&, const FaultContext&) {
  return false;  // writers: an edit of what was written
}
bool drop_scales(MlaAttendArgs& a, const FaultContext& c) {
  const KvGeometry& g = a.kv.geometry;
  a.kv.latent = changed_pages(a.kv.latent, g.latent_page_bytes(), c, [&](std::byte* p) { drop_latent_scales(g, p); });
  return true;
}
bool drop_scales(IndexerLogitsArgs& a, const FaultContext& c) {
  const KvGeometry& g = a.kv.geometry;
  a.kv.index_keys =
      changed_pages(a.kv.index_keys, g.index_page_bytes(), c, [&](std::byte* p) { drop_index_scales(g, p); });
  return true;
}

// ---- rotation ----

template <class Args>
bool rotate_halves(Args&, const FaultContext&) {
  return false;
}
template <class Args>
requires requires(Args a) { a.interleaved; }
bool rotate_halves(Args& a, const FaultContext&) {
  a.interleaved = !a.interleaved;
  return true;
}
// This op always rotates pairs: elements of halves are brought side by side, and back in finish_rope_halves.
bool rotate_halves(KvWriteArgs& a, const FaultContext& c) {
  const int rank = a.kv.geometry.kv_lora_rank, half = a.kv.geometry.rope_dim / 2;
  const int64_t width = a.kv_a.dim(1);
  std::vector<float> row(static_cast<size_t>(width)), all;
  for (int64_t t = 0; t < c.call.rows; ++t) {
    c.memory.get(row.data(), a.kv_a.row_f32(t), row.size() * 4);
    std::vector<float> paired = row;
    for (int i = 0; i < half; ++i) {
      paired[static_cast<size_t>(rank + 2 * i)] = row[static_cast<size_t>(rank + i)];
      paired[static_cast<size_t>(rank + 2 * i + 1)] = row[static_cast<size_t>(rank + half + i)];
    }
    all.insert(all.end(), paired.begin(), paired.end());
  }
  a.kv_a.data = c.memory.copy(all.data(), all.size() * 4);
  a.kv_a.ld = width;
  return true;
}

template <class Args>
bool other_theta(Args&, const FaultContext&) {
  return false;
}
template <class Args>
requires requires(Args a) { a.cos; }
bool other_theta(Args& a, const FaultContext& c) {
  constexpr double kUsualDefault = 10000;  // what a reader that looks in the wrong place falls back to
  RopeSpec rope = c.config.rope;
  rope.theta = rope.theta == kUsualDefault ? 1e6 : kUsualDefault;
  const std::vector<float> inv_freq = rope_inv_freq(rope, c.config.qk_rope_head_dim);
  const auto factor = static_cast<float>(rope_cos_sin_factor(rope));
  std::vector<float> cos, sin;
  for (int64_t r = 0; r < c.call.rows; ++r) {
    const int32_t row = c.call.origin.row(r);
    const float position = c.pass.sequence[row] < 0 ? 0.0f : static_cast<float>(c.pass.positions[row]);
    for (const float f : inv_freq) {
      cos.push_back(std::cos(position * f) * factor);
      sin.push_back(std::sin(position * f) * factor);
      if (!a.numerics.rope_bf16) continue;
      cos.back() = round_bf16(cos.back());
      sin.back() = round_bf16(sin.back());
    }
  }
  a.cos = reinterpret_cast<const float*>(c.memory.copy(cos.data(), cos.size() * 4));
  a.sin = reinterpret_cast<const float*>(c.memory.copy(sin.data(), sin.size() * 4));
  return true;
}

// ---- selection and routing ----

template <class Args>
bool lose_last(Args&, const FaultContext&) {
  return false;
}
bool lose_last(TopKArgs& a, const FaultContext& c) {
  std::vector<int32_t> positions(static_cast<size_t>(c.call.rows));
  c.memory.get(positions.data(), a.positions, positions.size() * 4);
  for (int32_t& position : positions) position = std::max(position - 1, -1);
  a.positions = reinterpret_cast<const int32_t*>(c.memory.copy(positions.data(), positions.size() * 4));
  return true;
}
bool lose_last(MlaAttendArgs& a, const FaultContext& c) {
  const int64_t width = a.topk_indices.dim(1);
  std::vector<int32_t> all, row(static_cast<size_t>(width));
  for (int64_t t = 0; t < c.call.rows; ++t) {
    c.memory.get(row.data(), a.topk_indices.row_i32(t), row.size() * 4);
    const auto end = std::find(row.begin(), row.end(), -1);
    if (end != row.begin()) *(end - 1) = -1;
    all.insert(all.end(), row.begin(), row.end());
  }
  a.topk_indices.data = c.memory.copy(all.data(), all.size() * 4);
  a.topk_indices.ld = width;
  return true;
}

template <class Args>
bool drop_bias(Args&, const FaultContext&) {
  return false;
}
bool drop_bias(RouterArgs& a, const FaultContext& c) {
  const std::vector<float> zeros(static_cast<size_t>(a.gate->n()));
  a.bias = reinterpret_cast<const float*>(c.memory.copy(zeros.data(), zeros.size() * 4));
  return true;
}

template <class Args>
bool swap_experts(Args&, const Fault&, FaultyArgs&) {
  return false;  // Router: an edit of what was chosen
}
bool swap_experts(MoeArgs& a, const Fault& f, FaultyArgs& out) {
  const size_t one = static_cast<size_t>(f.column) % a.gate.size(), other = (one + 1) % a.gate.size();
  for (std::span<const Weight>* experts : {&a.gate, &a.up, &a.down}) {
    std::vector<Weight>& swapped = out.weights.emplace_back(experts->begin(), experts->end());
    std::swap(swapped[one], swapped[other]);
    *experts = swapped;
  }
  return true;
}

}  // namespace

bool change_args(const Fault& fault, const FaultContext& context, FaultyArgs& out) {
  out.weights.reserve(3);
  return std::visit(
      [&](auto& a) {
        switch (fault.kind) {
          case PlantedKind::ScaleFormat:
          case PlantedKind::NibbleOrder:
          case PlantedKind::BlockOffset:
            return misread(a, fault, context, out);
          case PlantedKind::KvScaleDropped:
            return drop_scales(a, context);
          case PlantedKind::RopeHalves:
            return rotate_halves(a, context);
          case PlantedKind::RopeTheta:
            return other_theta(a, context);
          case PlantedKind::TopkOffByOne:
            return lose_last(a, context);
          case PlantedKind::RouterBiasDropped:
            return drop_bias(a, context);
          case PlantedKind::ExpertSwapped:
            return swap_experts(a, fault, out);
          default:
            return false;
        }
      },
      out.args);
}

void finish_rope_halves(const KvWriteArgs& args, const FaultContext& context) {
  const KvGeometry& g = args.kv.geometry;
  const size_t width = g.latent == KvFormat::F32 ? 4 : 2, half = static_cast<size_t>(g.rope_dim) / 2;
  for (int r = 0; r < context.pass.rows; ++r) {
    if (context.pass.sequence[r] < 0) continue;
    std::byte* rope = latent_row(args.kv, context.pass, context.pass.sequence[r], context.pass.positions[r]) +
                      g.latent_row_bytes() - static_cast<int64_t>(2 * half * width);
    std::vector<std::byte> paired(2 * half * width), halves(paired.size());
    context.memory.get(paired.data(), rope, paired.size());
    for (size_t i = 0; i < half; ++i) {
      std::memcpy(halves.data() + i * width, paired.data() + 2 * i * width, width);
      std::memcpy(halves.data() + (half + i) * width, paired.data() + (2 * i + 1) * width, width);
    }
    context.memory.put(rope, halves.data(), halves.size());
  }
}

}  // namespace plumb
