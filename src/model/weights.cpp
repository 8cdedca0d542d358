// From checkpoint tensors to the weights kernels read.

#include <algorithm>
#include <atomic>

#include "base/thread_pool.h"
#include "model/model.h"
#include "model/upload.h"

namespace plumb {
namespace {

constexpr int64_t kAlign = 256;

// A weight waiting for its arrangement in memory.
struct Pending {
  Weight* weight = nullptr;
  const Conversion* conversion = nullptr;
  int64_t offset = 0, bytes = 0;
};

// Reports about every 1/256 of the whole.
class Meter {
 public:
  Meter(const LoadOptions& options, std::string_view phase, int64_t total)
      : options_(options), now_{.phase = phase, .total_bytes = total} {
    report();
  }
  void set(int64_t done) {
    now_.done_bytes = done;
    if (done == now_.total_bytes || done - reported_ > now_.total_bytes / 256) report();
  }

 private:
  void report() {
    reported_ = now_.done_bytes;
    if (options_.progress) options_.progress(now_);
  }
  const LoadOptions& options_;
  LoadProgress now_;
  int64_t reported_ = 0;
};

// Values of every weight against formats.md section 5: workers take one weight after the other, the caller reports.
Status check_values_of(const WeightMap& map, ThreadPool& pool, const LoadOptions& options) {
  const std::vector<const WeightSource*> all = map.all();
  int64_t total = 0;
  for (const WeightSource* source : all) total += encoded_data_bytes(source->format, source->n, source->k);
  Meter meter(options, "check", total);
  std::atomic<size_t> next{0};
  std::atomic<int64_t> done{0};
  std::vector<Status> results(all.size());
  pool.parallel([&](int worker, int) {
    for (size_t i = next++; i < all.size(); i = next++) {
      results[i] = check_weight_values(*all[i]);
      done += encoded_data_bytes(all[i]->format, all[i]->n, all[i]->k);
      if (worker == 0) meter.set(std::min(done.load(), total));
    }
  });
  for (Status& status : results)
    if (!status) return std::move(status).error();  // the first in the model's order, whichever was found first
  return Ok{};
}

class Loader {
 public:
  Loader(const ModelWeights::Source& in, const LoadOptions& options, std::vector<std::shared_ptr<std::byte>>& storage,
         std::vector<FloatVector>& biases)
      : in_(in), options_(options), storage_(storage), biases_(biases) {}

  void layer(const LayerSources& from, const LayerSites& s, LayerWeights& to);
  // One weight read by the kernels of `site`; -1: by none that wants an arrangement of its own.
  void weight(const WeightSource& from, SiteId site, Weight& to, const WeightSource* bias = nullptr);
  // By default where kernels read; biases lie where the host reads them as well, for witnesses.
  FloatVector vector(const WeightSource& from) { return vector(from, options_.memory.allocate); }
  FloatVector vector(const WeightSource& from, decltype(Memory::allocate) allocate);
  Result<int64_t> prepare(ThreadPool& pool);
  Status to_device(ThreadPool& pool, std::byte* block, Meter& meter);

 private:
  void mlp(const MlpSources& from, SiteId site, LayerWeights& to);
  const std::byte* keep(std::vector<std::byte> bytes);
  const Conversion* conversion(SiteId site, Weight& to);

  void place(const std::byte* from, std::byte* to, int64_t bytes);
  const ModelWeights::Source& in_;
  const LoadOptions& options_;
  std::vector<std::shared_ptr<std::byte>>& storage_;
  std::vector<FloatVector>& biases_;
  std::vector<Pending> pending_{};
  Status status_{};
};

// The one arrangement that the site's kernels want besides the file's own, which stays readable through `source`.
const Conversion* Loader::conversion(SiteId site, Weight& to) {
  if (site < 0) return nullptr;
  Layout layout = Layout::RowMajor;
  for (const Choice& choice : in_.plan.sites[static_cast<size_t>(site)].choices) {
    const Layout wanted = choice.kernel->contract.weight_layout;
    if (wanted == Layout::RowMajor || wanted == layout) continue;
    if (layout != Layout::RowMajor && status_)
      status_ = Error{Code::Unsupported,
                      in_.plan.sites[static_cast<size_t>(site)].decl.name +
                          " has kernels of two weight layouts: " + to_string(layout) + " and " + to_string(wanted),
                      "a weight is kept in one layout besides the file's",
                      {"pin one kernel for all rows with --kernel"}};
    layout = wanted;
  }
  if (layout == Layout::RowMajor) return nullptr;
  const Conversion* found = in_.registry.conversion(layout, to.format());
  if (found == nullptr && status_)
    status_ = Error{Code::Unsupported,
                    to.name + " cannot be brought from " + to.format().to_string() + " to layout " + to_string(layout),
                    "there is no such conversion",
                    {"--backend reference"}};
  return found;
}

const std::byte* Loader::keep(std::vector<std::byte> bytes) {
  auto kept = std::make_shared<std::vector<std::byte>>(std::move(bytes));
  storage_.emplace_back(kept, kept->data());
  return kept->data();
}

void Loader::weight(const WeightSource& from, SiteId site, Weight& to, const WeightSource* bias) {
  if (!from) return;
  EncodedSource encoded = encode_source(from);
  if (!encoded.scale_copy.empty()) encoded.matrix.scale = keep(std::move(encoded.scale_copy));
  if (!encoded.data_copy.empty()) encoded.matrix.data = keep(std::move(encoded.data_copy));
  constexpr std::string_view kSuffix = ".weight";
  to.name = from.name;
  if (to.name.ends_with(kSuffix)) to.name.resize(to.name.size() - kSuffix.size());
  to.source = encoded.matrix;
  if (from.has_input_scale) to.input_scale = from.input_scale;
  if (bias != nullptr && *bias) to.bias = biases_.emplace_back(vector(*bias, options_.memory.allocate_staging)).data();
  if (const Conversion* c = conversion(site, to)) {
    to.layout = c->to;
    pending_.push_back({.weight = &to, .conversion = c, .bytes = static_cast<int64_t>(c->bytes(to.source))});
  }
}

// Host bytes to where kernels read them; `from` may change afterwards.
void Loader::place(const std::byte* from, std::byte* to, int64_t bytes) {
  Stream none;
  Stream& stream = options_.stream != nullptr ? *options_.stream : none;
  options_.memory.upload(to, from, static_cast<size_t>(bytes), stream);
  options_.memory.synchronise(stream);
}

FloatVector Loader::vector(const WeightSource& from, decltype(Memory::allocate) allocate) {
  const EncodedSource encoded = encode_source(from);
  std::vector<float> values(static_cast<size_t>(from.n * from.k));
  for (int64_t row = 0; row < from.n; ++row) decode_row(encoded.matrix, row, values.data() + row * from.k);
  Result<std::shared_ptr<std::byte>> block = allocate(values.size() * sizeof(float), from.name.c_str());
  if (!block) {
    if (status_) status_ = std::move(block).error();
    return {};
  }
  place(reinterpret_cast<const std::byte*>(values.data()), block->get(),
        static_cast<int64_t>(values.size() * sizeof(float)));
  return {*block, values.size()};
}

void Loader::mlp(const MlpSources& from, SiteId site, LayerWeights& to) {
  weight(from.gate_proj, site, to.gate);
  weight(from.up_proj, site, to.up);
  weight(from.down_proj, site, to.down);
}

void Loader::layer(const LayerSources& from, const LayerSites& s, LayerWeights& to) {
  to.input_norm = vector(from.input_layernorm);
  to.post_norm = vector(from.post_attention_layernorm);
  to.q_a_norm = vector(from.q_a_layernorm);
  to.kv_a_norm = vector(from.kv_a_layernorm);
  weight(from.q_a_proj, s.q_a, to.q_a, &from.q_a_proj_bias);
  weight(from.q_b_proj, s.q_b, to.q_b);
  weight(from.kv_a_proj_with_mqa, s.kv_a, to.kv_a, &from.kv_a_proj_bias);
  weight(from.kv_b_proj, s.attend, to.kv_b);
  weight(from.o_proj, s.o, to.o, &from.o_proj_bias);
  if (from.indexer) {
    to.has_indexer = true;
    weight(from.indexer->wq_b, s.wq_b, to.wq_b);
    weight(from.indexer->wk, s.wk, to.wk);
    weight(from.indexer->weights_proj, s.weights_proj, to.weights_proj);
    to.k_norm = vector(from.indexer->k_norm);
    to.k_norm_bias = vector(from.indexer->k_norm_bias);
  }
  if (from.mlp) return mlp(*from.mlp, s.mlp, to);
  to.sparse = true;
  weight(from.gate, s.router, to.router);
  to.correction_bias = vector(from.e_score_correction_bias);
  if (from.shared_experts) mlp(*from.shared_experts, s.mlp, to);
  const size_t experts = from.experts.size();
  to.expert_gate.resize(experts);
  to.expert_up.resize(experts);
  to.expert_down.resize(experts);
  for (size_t e = 0; e < experts; ++e) {
    weight(from.experts[e].gate_proj, s.moe, to.expert_gate[e]);
    weight(from.experts[e].up_proj, s.moe, to.expert_up[e]);
    weight(from.experts[e].down_proj, s.moe, to.expert_down[e]);
  }
}

// Layouts that are the file's bytes at other places go piece by piece; others are made whole on the host first.
Status Loader::to_device(ThreadPool& pool, std::byte* block, Meter& meter) {
  PLUMB_TRY(Upload upload, Upload::make(options_.memory, *options_.stream, pool));
  std::vector<std::byte> whole;
  for (Pending& p : pending_) {
    std::byte* home = block + p.offset;
    const EncodedMatrix& source = p.weight->source;
    if (p.conversion->pieces != nullptr) {
      p.conversion->pieces(
          source, [&](int64_t offset, const void* from, int64_t bytes) { upload.copy(home + offset, from, bytes); });
    } else {
      whole.resize(std::max(whole.size(), static_cast<size_t>(p.bytes)));
      pool.parallel([&](int part, int parts) { p.conversion->fill(source, whole.data(), part, parts); });
      upload.copy(home, whole.data(), p.bytes);
      upload.finish();
    }
    p.weight->prepared = home;
    meter.set(p.offset + p.bytes);
  }
  upload.finish();
  return Ok{};
}

Result<int64_t> Loader::prepare(ThreadPool& pool) {
  PLUMB_TRY_STATUS(std::move(status_));
  int64_t total = 0;
  for (Pending& p : pending_) {
    p.offset = total;
    total += (p.bytes + kAlign - 1) / kAlign * kAlign;
  }
  if (total == 0) return 0;
  PLUMB_TRY(std::shared_ptr<std::byte> block,
            options_.memory.allocate(static_cast<size_t>(total), "re-arranged weights"));
  storage_.push_back(block);
  const bool on_host = options_.memory.where == Where::Host;
  Meter meter(options_, "prepare", total);
  if (!on_host) {
    PLUMB_TRY_STATUS(to_device(pool, block.get(), meter));
    meter.set(total);
    return total;
  }
  for (Pending& p : pending_) {
    std::byte* home = block.get() + p.offset;
    const EncodedMatrix& source = p.weight->source;
    // A worker writes the part it will read when the op runs, so the pages come to lie on its own memory node.
    pool.parallel([&](int part, int parts) {
      const Range range = split(encoded_data_bytes(source.format, source.n, source.k), part, parts);
      populate(static_cast<const std::byte*>(source.data) + range.begin, range.end - range.begin);
      p.conversion->fill(source, home, part, parts);
    });
    p.weight->prepared = home;
    meter.set(p.offset + p.bytes);
  }
  meter.set(total);
  return total;
}

}  // namespace

Result<ModelWeights> ModelWeights::load(const Source& source, ThreadPool& pool, const LoadOptions& options) {
  const WeightMap& map = source.map;
  const ModelSites& sites = source.sites;
  if (options.check_values) PLUMB_TRY_STATUS(check_values_of(map, pool, options));
  ModelWeights w;
  Loader loader(source, options, w.storage_, w.biases_);
  loader.weight(map.embed_tokens, sites.embed, w.embed);
  w.first_token = static_cast<int32_t>(map.embed_tokens.row_offset);
  loader.weight(map.lm_head, sites.lm_head, w.lm_head);
  w.final_norm = loader.vector(map.norm);
  w.layers.resize(map.layers.size() + (map.mtp ? 1 : 0));
  for (size_t i = 0; i < map.layers.size(); ++i) loader.layer(map.layers[i], sites.layers[i], w.layers[i]);
  if (map.mtp) {
    w.has_mtp = true;
    w.enorm = loader.vector(map.mtp->enorm);
    w.hnorm = loader.vector(map.mtp->hnorm);
    w.head_norm = loader.vector(map.mtp->shared_head_norm);
    loader.weight(map.mtp->eh_proj, sites.eh_proj, w.eh_proj);
    loader.layer(map.mtp->layer, sites.layers.back(), w.layers.back());
  }
  PLUMB_TRY(w.prepared_bytes_, loader.prepare(pool));
  return w;
}

}  // namespace plumb
