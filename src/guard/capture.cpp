#include "guard/capture.h"

#include <cstring>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "base/log.h"
#include "base/thread_pool.h"
#include "checkpoint/safetensors.h"
#include "guard/args_codec.h"

namespace plumb {
namespace {

using Json = nlohmann::json;
constexpr const char* kKey = "plumb_capture";
constexpr int kVersion = 1;

template <class T>
constexpr DType dtype_of() {
  return std::is_same_v<T, float> ? DType::F32 : DType::I32;
}

struct Part {
  TensorInfo info{};
  const void* data = nullptr;
};

class Writer {
 public:
  template <class T>
  void scalar(const char* name, T& value) {
    if constexpr (std::is_enum_v<T>)
      scalars_[name] = static_cast<int>(value);
    else
      scalars_[name] = value;
  }
  template <class T>
  void array(const char* name, const T*& from, int64_t count) {
    if (from != nullptr) add(std::string("array.") + name, dtype_of<T>(), {count}, from);
  }
  void cache(const char* name, std::byte*& from, int64_t bytes) {
    if (from != nullptr) add(name, DType::U8, {bytes}, from);
  }
  void source(const char* name, Tensor& x, const Tensor&) { tensor(name, x); }
  void tensor(const std::string& name, const Tensor& t) {
    std::vector<int64_t> shape(t.shape.begin(), t.shape.begin() + t.rank);
    add(name, t.dtype, std::move(shape), t.data);
  }
  const Json& scalars() const { return scalars_; }
  const std::vector<Part>& parts() const { return parts_; }

 private:
  void add(std::string name, DType dtype, std::vector<int64_t> shape, const void* data) {
    parts_.push_back({.info = {.name = std::move(name), .dtype = dtype, .shape = std::move(shape)}, .data = data});
  }
  Json scalars_ = Json::object();
  std::vector<Part> parts_{};
};

// Reads what Writer wrote; anything missing or of another size is remembered, and the file refused.
class Reader {
 public:
  Reader(const SafetensorsFile& file, const Json& scalars, Storage& storage)
      : file_(file), scalars_(scalars), storage_(storage) {}

  template <class T>
  void scalar(const char* name, T& value) {
    const auto found = scalars_.find(name);
    if (found == scalars_.end() || !(found->is_number() || found->is_boolean())) return fail(name);
    if constexpr (std::is_enum_v<T>)
      value = static_cast<T>(found->template get<int>());
    else
      value = found->template get<T>();
  }
  template <class T>
  void array(const char* name, const T*& to, int64_t count) {
    to = static_cast<const T*>(bytes(std::string("array.") + name, dtype_of<T>(), count * 4, /*required=*/false));
  }
  void cache(const char* name, std::byte*& to, int64_t size) {
    to = static_cast<std::byte*>(bytes(name, DType::U8, size, /*required=*/false));
  }
  void source(const char* name, Tensor& x, const Tensor& like) {
    x = like;
    x.data = bytes(name, x.dtype, x.bytes(), /*required=*/true);
  }
  // Absent: no data.
  Tensor tensor(const std::string& name) {
    const TensorInfo* info = file_.find(name);
    if (info == nullptr) return {};
    if (info->shape.size() != 2) {
      fail(name);
      return {};
    }
    Tensor t(nullptr, info->dtype, {info->shape[0], info->shape[1]});
    t.data = bytes(name, info->dtype, t.bytes(), /*required=*/true);
    return t;
  }
  const std::string& problem() const { return problem_; }

 private:
  void* bytes(const std::string& name, DType dtype, int64_t size, bool required) {
    const TensorInfo* info = file_.find(name);
    if (info == nullptr) {
      if (required) fail(name);
      return nullptr;
    }
    if (info->dtype != dtype || static_cast<int64_t>(info->bytes()) != size) {
      fail(name);
      return nullptr;
    }
    std::byte* to = storage_.take(static_cast<size_t>(size));
    std::memcpy(to, file_.data(*info), static_cast<size_t>(size));
    return to;
  }
  void fail(const std::string& name) {
    if (problem_.empty()) problem_ = name;
  }

  const SafetensorsFile& file_;
  const Json& scalars_;
  Storage& storage_;
  std::string problem_{};
};

AnyArgs empty_args(Op op) {
  AnyArgs args;
  [&]<size_t... index>(std::index_sequence<index...>) {
    ((static_cast<size_t>(op) == index ? static_cast<void>(args.emplace<index>()) : static_cast<void>(0)), ...);
  }
  (std::make_index_sequence<std::variant_size_v<AnyArgs>>());
  return args;
}

// ---- weights of a place ----

template <class Args>
void bind(Args&, SiteId, const ModelSites&, const ModelWeights&, const LayerWeights*, const LayerSites*) {}
void bind(EmbedArgs& a, SiteId, const ModelSites&, const ModelWeights& w, const LayerWeights*, const LayerSites*) {
  a.table = &w.embed;
}
void bind(LinearArgs& a, SiteId site, const ModelSites& sites, const ModelWeights& w, const LayerWeights* layer,
          const LayerSites* places) {
  if (site == sites.lm_head) a.w = &w.lm_head;
  if (site == sites.eh_proj) a.w = &w.eh_proj;
  if (layer == nullptr) return;
  const std::pair<SiteId, const Weight*> all[] = {{places->q_a, &layer->q_a},
                                                  {places->q_b, &layer->q_b},
                                                  {places->kv_a, &layer->kv_a},
                                                  {places->o, &layer->o},
                                                  {places->wq_b, &layer->wq_b},
                                                  {places->wk, &layer->wk},
                                                  {places->weights_proj, &layer->weights_proj}};
  for (const auto& [place, weight] : all)
    if (site == place) a.w = weight;
}
void bind(MlaAttendArgs& a, SiteId, const ModelSites&, const ModelWeights&, const LayerWeights* w, const LayerSites*) {
  a.kv_b = &w->kv_b;
}
void bind(RouterArgs& a, SiteId, const ModelSites&, const ModelWeights&, const LayerWeights* w, const LayerSites*) {
  a.gate = &w->router;
}
void bind(MlpArgs& a, SiteId, const ModelSites&, const ModelWeights&, const LayerWeights* w, const LayerSites*) {
  a.gate = &w->gate;
  a.up = &w->up;
  a.down = &w->down;
}
void bind(MoeArgs& a, SiteId, const ModelSites&, const ModelWeights&, const LayerWeights* w, const LayerSites*) {
  a.gate = w->expert_gate;
  a.up = w->expert_up;
  a.down = w->expert_down;
}

void bind_weights(AnyArgs& args, SiteId site, int layer, const ModelSites& sites, const ModelWeights& weights) {
  const LayerWeights* w = layer < 0 ? nullptr : &weights.layers[static_cast<size_t>(layer)];
  const LayerSites* places = layer < 0 ? nullptr : &sites.layers[static_cast<size_t>(layer)];
  std::visit([&](auto& a) { bind(a, site, sites, weights, w, places); }, args);
}

Error broken(const std::filesystem::path& path, const std::string& what) {
  return {Code::Corrupt, path.string() + " is no capture", what, {}};
}

}  // namespace

Status write_capture(const std::filesystem::path& path, const Incident& incident, const OpRecord& record,
                     const CaptureOrigin& origin, std::span<const int32_t> tokens) {
  Writer writer;
  AnyArgs before = record.before(), have = record.have();
  for_tensors(before, [&](const char* name, const Tensor& tensor, Role role) {
    if (role != Role::Out) writer.tensor(std::string("before.") + name, tensor);
  });
  for_tensors(have, [&](const char* name, const Tensor& tensor, Role role) {
    if (role != Role::In) writer.tensor(std::string("have.") + name, tensor);
  });
  std::visit([&](auto& a) { args_codec::fields(a, writer); }, have);
  Json rows = Json::array();
  for (int64_t r = 0; r < record.rows(); ++r) rows.push_back(record.step_row(r));
  Json facts = {{"version", kVersion},
                {"incident", to_json(incident)},
                {"op", to_string(op_of(have))},
                {"site", incident.site},
                {"kernel", record.kernel().contract.name},
                {"build", origin.build},
                {"checkpoint", origin.checkpoint},
                {"plan", origin.plan},
                {"step_rows", std::move(rows)},
                {"args", writer.scalars()}};
  if (!tokens.empty()) facts["tokens"] = std::vector<int32_t>(tokens.begin(), tokens.end());
  std::vector<TensorInfo> layout;
  for (const Part& part : writer.parts()) layout.push_back(part.info);
  PLUMB_TRY(SafetensorsWriter file, SafetensorsWriter::create(path, std::move(layout), {{kKey, facts.dump()}}));
  for (size_t i = 0; i < writer.parts().size(); ++i)
    PLUMB_TRY_STATUS(file.write(writer.parts()[i].data, file.tensors()[i].bytes()));
  return file.finish();
}

Json Capture::facts() { return Json::parse(facts_text); }

Result<std::vector<int32_t>> captured_tokens(const std::filesystem::path& path) {
  PLUMB_TRY(const SafetensorsFile file, SafetensorsFile::open(path));
  const auto text = file.metadata().find(kKey);
  if (text == file.metadata().end()) return broken(path, std::string("its metadata has no ") + kKey);
  const Json facts = Json::parse(text->second, nullptr, /*allow_exceptions=*/false);
  std::vector<int32_t> ids;
  if (!facts.is_object() || !facts.contains("tokens")) return ids;
  for (const Json& id : facts["tokens"]) {
    if (!id.is_number_integer()) return broken(path, "its tokens are no numbers");
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

Result<Capture> read_capture(const std::filesystem::path& path, const Plan& plan, const Registry& registry,
                             const ModelSites& sites, const ModelWeights& weights) {
  PLUMB_TRY(const SafetensorsFile file, SafetensorsFile::open(path));
  const auto text = file.metadata().find(kKey);
  if (text == file.metadata().end()) return broken(path, std::string("its metadata has no ") + kKey);
  const Json facts = Json::parse(text->second, nullptr, /*allow_exceptions=*/false);
  const auto has = [&](const char* key, auto test) { return facts.contains(key) && (facts[key].*test)(); };
  if (!facts.is_object() || facts.value("version", 0) != kVersion || !has("site", &Json::is_string) ||
      !has("kernel", &Json::is_string) || !has("op", &Json::is_string) || !has("args", &Json::is_object) ||
      !has("step_rows", &Json::is_array))
    return broken(path, "its facts are not those of version " + std::to_string(kVersion));
  const auto site = std::find_if(plan.sites.begin(), plan.sites.end(),
                                 [&](const Site& s) { return s.decl.name == facts["site"].get<std::string>(); });
  const Kernel* kernel = registry.find(facts["kernel"].get<std::string>());
  if (site == plan.sites.end() || to_string(site->decl.call.op) != facts["op"].get<std::string>())
    return Error{Code::Unsupported,
                 path.string() + " is of " + facts["site"].get<std::string>() + ", " + facts["op"].get<std::string>(),
                 "the model has no such place",
                 {"the model it was captured from: checkpoint " + facts.value("checkpoint", "unknown")}};
  if (kernel == nullptr || kernel->contract.op != site->decl.call.op)
    return Error{Code::Unsupported,
                 path.string() + " is of kernel " + facts["kernel"].get<std::string>(),
                 "this build has no such kernel",
                 {"the build it was captured with: " + facts.value("build", "unknown")}};
  Storage storage;
  Reader reader(file, facts["args"], storage);
  AnyArgs have = empty_args(site->decl.call.op);
  std::visit(
      [&](auto& a) {
        const auto read = [&](const char* name, Tensor& tensor, Role role) {
          tensor = reader.tensor(std::string(role == Role::In ? "before." : "have.") + name);
        };
        op_args::each(a, read);
        args_codec::fields(a, reader);
      },
      have);
  const auto id = static_cast<SiteId>(site - plan.sites.begin());
  bind_weights(have, id, site->decl.layer, sites, weights);
  AnyArgs before = have;
  for_tensors(before, [&](const char* name, Tensor& tensor, Role role) {
    if (role == Role::InOut) tensor = reader.tensor(std::string("before.") + name);
  });
  std::vector<int32_t> rows;
  for (const Json& row : facts["step_rows"]) rows.push_back(row.is_number_integer() ? row.get<int32_t>() : -1);
  if (!reader.problem().empty()) return broken(path, "'" + reader.problem() + "' is missing or of another size");
  if (rows_of(have) != static_cast<int64_t>(rows.size())) return broken(path, "its rows are not as many as it says");
  return Capture{.facts_text = text->second,
                 .site = site->decl.name,
                 .kernel = kernel->contract.name,
                 .record = OpRecord(id, *kernel, before, have, std::move(rows), std::move(storage))};
}

CaptureStore::CaptureStore(CaptureLimits limits, CaptureOrigin origin)
    : limits_(std::move(limits)), origin_(std::move(origin)) {
  if (limits_.folder.empty()) return;
  writer_ = std::make_unique<JobPool>(1, 64);
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(limits_.folder, ignored)) {
    if (!entry.path().filename().string().ends_with(kCaptureSuffix)) continue;
    ++files_;
    bytes_ += static_cast<int64_t>(entry.file_size(ignored));
  }
}

CaptureStore::~CaptureStore() = default;

bool CaptureStore::add(const Incident& incident, OpRecord record, std::span<const int32_t> tokens) {
  if (writer_ == nullptr) return false;
  const auto bytes = static_cast<int64_t>(record.bytes());
  {
    const std::lock_guard lock(mutex_);
    if (files_ >= limits_.max_files || bytes_ + bytes > limits_.max_bytes) {
      ++dropped_;
      return false;
    }
    ++files_;
    bytes_ += bytes;
  }
  const std::span<const int32_t> told = limits_.with_tokens ? tokens : std::span<const int32_t>();
  auto job = [this, incident, held = std::make_shared<OpRecord>(std::move(record)),
              ids = std::vector<int32_t>(told.begin(), told.end())] {
    std::error_code failed;
    std::filesystem::create_directories(limits_.folder, failed);
    const std::filesystem::path path = limits_.folder / (incident.id + std::string(kCaptureSuffix));
    const Status status = write_capture(path, incident, *held, origin_, ids);
    if (status) {
      ++written_;
      log_info("capture written: " + path.string());
    } else {
      ++dropped_;
      log_warn("capture not written: " + status.error().to_string());
    }
  };
  if (writer_->try_submit(std::move(job))) return true;
  ++dropped_;
  return false;
}

}  // namespace plumb
