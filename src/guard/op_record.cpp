#include "guard/op_record.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "base/check.h"

namespace plumb {

std::byte* Storage::take(size_t bytes) {
  bytes = std::max<size_t>(bytes, 1);
  blocks_.emplace_back(static_cast<std::byte*>(::operator new(bytes, kAlign)));
  bytes_ += bytes;
  return static_cast<std::byte*>(std::memset(blocks_.back().get(), 0, bytes));
}

Tensor Storage::like(const Tensor& tensor) {
  Tensor copy = tensor;
  copy.where = Where::Host;
  copy.ld = tensor.dim(0) > 0 ? tensor.elements() / tensor.dim(0) : 0;
  copy.data = take(static_cast<size_t>(tensor.bytes()));
  return copy;
}

namespace {

// Copies what an op reads, wherever it lies.
class Fetch {
 public:
  Fetch(Executor& executor, Storage& storage) : executor_(executor), storage_(storage) {}

  bool on_host() const { return executor_.memory().where == Where::Host; }
  void bytes(void* to, const void* from, int64_t count) {
    if (on_host())
      std::memcpy(to, from, static_cast<size_t>(count));
    else
      executor_.memory().download(to, from, static_cast<size_t>(count), executor_.stream());
  }
  template <class T>
  T* array(const T* from, int64_t count) {
    if (from == nullptr) return nullptr;
    T* to = storage_.array<T>(static_cast<size_t>(count));
    bytes(to, from, count * static_cast<int64_t>(sizeof(T)));
    return to;
  }
  void rows(const Tensor& to, const Tensor& from) {
    if (from.contiguous()) return bytes(to.data, from.data, to.bytes());
    const int64_t row_bytes = to.dim(0) > 0 ? to.bytes() / to.dim(0) : 0;
    for (int64_t r = 0; r < to.dim(0); ++r)
      bytes(static_cast<std::byte*>(to.data) + r * row_bytes,
            static_cast<const std::byte*>(from.data) + r * from.ld * bits(from.dtype) / 8, row_bytes);
  }
  // Of the model, where its kernels read them: on the host they can be referred to.
  void vector(const float*& values, int64_t count) {
    if (!on_host()) values = array(values, count);
  }
  // The block of cache that begins there, on the host.
  const std::byte* block(const std::byte* begin, int64_t size) {
    if (on_host()) return begin;
    const auto [found, is_new] = blocks_.try_emplace(begin, nullptr);
    if (is_new) {
      found->second = own_.take(static_cast<size_t>(size));
      bytes(found->second, begin, size);
    }
    return found->second;
  }
  Storage& storage() { return storage_; }

  const int32_t* table(const Paging& paging) {
    return array(paging.page_table, int64_t{paging.sequences} * paging.page_table_stride);
  }

 private:
  Executor& executor_;
  Storage& storage_;
  std::map<const std::byte*, std::byte*> blocks_{};
  Storage own_{};
};

// A row of the latent cache; the page table and all it names may lie on a device, the table is on the host.
const std::byte* fetched_row(const KvView& kv, const Paging& paging, int32_t sequence, int32_t position, Fetch& fetch) {
  const std::byte* page = kv.latent + paging.page(sequence, position) * kv.geometry.latent_page_bytes();
  return fetch.block(page, kv.geometry.latent_page_bytes()) + (latent_row(kv, paging, sequence, position) - page);
}

// A page table of `pages` pages in order for each of `sequences`.
void number_pages(Paging& paging, int sequences, int pages, Storage& storage) {
  int32_t* table = storage.array<int32_t>(static_cast<size_t>(sequences) * static_cast<size_t>(pages));
  for (int i = 0; i < sequences * pages; ++i) table[i] = i;
  paging.sequences = sequences;
  paging.page_table = table;
  paging.page_table_stride = pages;
}

// One key of a page to another page's slot, bytes as they are.
void copy_index_key(const KvGeometry& g, const std::byte* from, int from_slot, std::byte* to, int to_slot) {
  const int64_t width = g.index_key == IndexKeyFormat::F32 ? 4 : g.index_key == IndexKeyFormat::Bf16 ? 2 : 1;
  const int64_t row = width * g.index_head_dim;
  std::memcpy(to + to_slot * row, from + from_slot * row, static_cast<size_t>(row));
  if (g.index_key != IndexKeyFormat::Fp8) return;
  const int64_t scales = int64_t{g.page_tokens} * g.index_head_dim;
  std::memcpy(to + scales + int64_t{to_slot} * 4, from + scales + int64_t{from_slot} * 4, 4);
}

// The rows written, side by side on pages of their own.
void own_written_pages(Paging& paging, KvView& kv, int64_t count, Fetch& fetch) {
  int32_t* positions = fetch.storage().array<int32_t>(static_cast<size_t>(count));
  int32_t* sequence = fetch.array(paging.sequence, count);
  for (int64_t r = 0; r < count; ++r) {
    positions[r] = static_cast<int32_t>(r);
    sequence[r] = std::min(sequence[r], 0);
  }
  paging.positions = positions;
  paging.sequence = sequence;
  const int pages = static_cast<int>((count + paging.page_tokens - 1) / paging.page_tokens);
  number_pages(paging, 1, pages, fetch.storage());
  if (kv.latent != nullptr)
    kv.latent = fetch.storage().take(static_cast<size_t>(pages * kv.geometry.latent_page_bytes()));
  if (kv.index_keys != nullptr)
    kv.index_keys = fetch.storage().take(static_cast<size_t>(pages * kv.geometry.index_page_bytes()));
}

template <class Args>
void fetch_angles(Args& a, int64_t count, int rope_dim, Fetch& fetch) {
  a.cos = fetch.array(a.cos, count * (rope_dim / 2));
  a.sin = fetch.array(a.sin, count * (rope_dim / 2));
}

// ---- what each op reads besides its tensors: `a` holds the rows wanted, and gets copies ----

template <class Args>
void fetch_rest(Args&, int64_t, Fetch&) {}
void fetch_rest(EmbedArgs& a, int64_t count, Fetch& fetch) { a.ids = fetch.array(a.ids, count); }
void fetch_rest(RmsNormArgs& a, int64_t, Fetch& fetch) { fetch.vector(a.weight, a.x.dim(1)); }
void fetch_rest(AddRmsNormArgs& a, int64_t, Fetch& fetch) { fetch.vector(a.weight, a.y.dim(1)); }
void fetch_rest(RouterArgs& a, int64_t count, Fetch& fetch) {
  a.sequence = fetch.array(a.sequence, count);
  fetch.vector(a.bias, a.logits.dim(1));
}
void fetch_rest(TopKArgs& a, int64_t count, Fetch& fetch) { a.positions = fetch.array(a.positions, count); }
void fetch_rest(RopeArgs& a, int64_t count, Fetch& fetch) { fetch_angles(a, count, a.rope_dim, fetch); }
void fetch_rest(IndexQueryArgs& a, int64_t count, Fetch& fetch) { fetch_angles(a, count, a.rope_dim, fetch); }
void fetch_rest(KvWriteArgs& a, int64_t count, Fetch& fetch) {
  fetch.vector(a.weight, a.kv.geometry.kv_lora_rank);
  fetch_angles(a, count, a.kv.geometry.rope_dim, fetch);
  a.kv.index_keys = nullptr;
  own_written_pages(a.paging, a.kv, count, fetch);
}
void fetch_rest(IndexKeyWriteArgs& a, int64_t count, Fetch& fetch) {
  fetch.vector(a.weight, a.k.dim(1));
  fetch.vector(a.bias, a.k.dim(1));
  fetch_angles(a, count, a.rope_dim, fetch);
  a.kv.latent = nullptr;
  own_written_pages(a.paging, a.kv, count, fetch);
}

// Every key of the sequences these rows belong to, page by page.
void fetch_rest(IndexerLogitsArgs& a, int64_t count, Fetch& fetch) {
  const KvView cache = a.kv;
  const int32_t* table = fetch.table(a.paging);
  const int32_t* positions = fetch.array(a.paging.positions, count);
  int32_t* sequence = fetch.array(a.paging.sequence, count);
  std::vector<int32_t> used;
  int pages = 1;
  for (int64_t r = 0; r < count; ++r) {
    if (sequence[r] < 0) continue;
    pages = std::max(pages, positions[r] / a.paging.page_tokens + 1);
    if (std::find(used.begin(), used.end(), sequence[r]) == used.end()) used.push_back(sequence[r]);
  }
  const int64_t page_bytes = cache.geometry.index_page_bytes();
  const int sequences = static_cast<int>(used.size());
  a.kv.latent = nullptr;
  a.kv.index_keys = fetch.storage().take(static_cast<size_t>(int64_t{sequences} * pages * page_bytes));
  for (int s = 0; s < sequences; ++s)
    for (int page = 0; page < pages; ++page) {
      const int64_t source = table[int64_t{used[static_cast<size_t>(s)]} * a.paging.page_table_stride + page];
      if (source >= 0)
        fetch.bytes(a.kv.index_keys + (int64_t{s} * pages + page) * page_bytes, cache.index_keys + source * page_bytes,
                    page_bytes);
    }
  for (int64_t r = 0; r < count; ++r)
    if (sequence[r] >= 0)
      sequence[r] = static_cast<int32_t>(std::find(used.begin(), used.end(), sequence[r]) - used.begin());
  a.paging.positions = positions;
  a.paging.sequence = sequence;
  number_pages(a.paging, std::max(sequences, 1), pages, fetch.storage());
}

// The selected tokens only: each row becomes a sequence of its own that sees just these.
void fetch_rest(MlaAttendArgs& a, int64_t count, Fetch& fetch) {
  const KvView cache = a.kv;
  Paging paging = a.paging;
  paging.page_table = fetch.table(paging);
  const int32_t* positions = fetch.array(paging.positions, count);
  int32_t* sequence = fetch.array(paging.sequence, count);
  const int64_t topk = a.topk_indices.dim(1);
  const int pages = static_cast<int>((topk + paging.page_tokens - 1) / paging.page_tokens);
  a.kv.index_keys = nullptr;
  a.kv.latent = fetch.storage().take(static_cast<size_t>(count * pages * cache.geometry.latent_page_bytes()));
  int32_t* last = fetch.storage().array<int32_t>(static_cast<size_t>(count));
  number_pages(a.paging, static_cast<int>(count), pages, fetch.storage());
  for (int64_t r = 0; r < count; ++r) {
    if (sequence[r] < 0) continue;
    int32_t* chosen = a.topk_indices.row_i32(r);
    int32_t kept = 0;
    for (int64_t i = 0; i < topk; ++i) {
      if (chosen[i] < 0 || chosen[i] > positions[r]) continue;
      std::memcpy(latent_row(a.kv, a.paging, static_cast<int32_t>(r), kept),
                  fetched_row(cache, paging, sequence[r], chosen[i], fetch),
                  static_cast<size_t>(cache.geometry.latent_row_bytes()));
      chosen[kept] = kept;
      ++kept;
    }
    std::fill(chosen + kept, chosen + topk, -1);
    last[r] = std::max(kept - 1, 0);
    sequence[r] = static_cast<int32_t>(r);
  }
  a.paging.positions = last;
  a.paging.sequence = sequence;
}

void fetch_rest(GatherRowsArgs& a, int64_t count, Fetch& fetch) {
  const int32_t* rows = fetch.array(a.rows, count);
  const Tensor chosen = fetch.storage().like(a.y);
  int32_t* numbers = fetch.storage().array<int32_t>(static_cast<size_t>(count));
  for (int64_t r = 0; r < count; ++r) {
    fetch.rows(chosen.slice(r, 1), a.x.slice(rows[r], 1));
    numbers[r] = static_cast<int32_t>(r);
  }
  a.x = chosen;
  a.rows = numbers;
}

void fetch_rest(SampleArgs& a, int64_t count, Fetch& fetch) {
  SampleRow* rows = fetch.storage().array<SampleRow>(static_cast<size_t>(count));
  const auto own = [&fetch](auto span) {
    return decltype(span)(fetch.array(span.data(), static_cast<int64_t>(span.size())), span.size());
  };
  for (int64_t r = 0; r < count; ++r) {
    rows[r] = a.rows[static_cast<size_t>(r)];
    rows[r].adjust_ids = own(rows[r].adjust_ids);
    rows[r].adjust_factor = own(rows[r].adjust_factor);
    rows[r].adjust_add = own(rows[r].adjust_add);
    rows[r].forbidden = own(rows[r].forbidden);
  }
  a.rows = std::span(rows, static_cast<size_t>(count));
  a.out = std::span(fetch.storage().array<SampleOut>(static_cast<size_t>(count)), static_cast<size_t>(count));
}

// ---- outputs that are no tensors ----

// `own` and `live` are the same rows; fresh memory for what `own` writes.
template <class Args>
void fresh_rest(Args&, Storage&) {}
template <class Args>
requires std::is_same_v<Args, KvWriteArgs> || std::is_same_v<Args, IndexKeyWriteArgs>
void fresh_rest(Args& a, Storage& storage) {
  const auto pages = static_cast<size_t>(a.paging.page_table_stride);
  const KvGeometry& g = a.kv.geometry;
  if (a.kv.latent != nullptr) a.kv.latent = storage.take(pages * static_cast<size_t>(g.latent_page_bytes()));
  if (a.kv.index_keys != nullptr) a.kv.index_keys = storage.take(pages * static_cast<size_t>(g.index_page_bytes()));
}
void fresh_rest(SampleArgs& a, Storage& storage) {
  a.out = std::span(storage.array<SampleOut>(a.out.size()), a.out.size());
}

template <class Args>
void take_rest(const Args&, const Args&, Fetch&) {}
void take_rest(const SampleArgs& own, const SampleArgs& live, Fetch&) {
  std::copy(live.out.begin(), live.out.end(), own.out.begin());
}
// The slots that were written.
template <class Copy>
void take_slots(const Paging& own, const Paging& live, Fetch& fetch, Copy copy) {
  Paging from = live;
  from.page_table = fetch.table(live);
  from.positions = fetch.array(live.positions, live.rows);
  from.sequence = fetch.array(live.sequence, live.rows);
  for (int r = 0; r < live.rows; ++r)
    if (from.sequence[r] >= 0) copy(from, from.sequence[r], from.positions[r], own.positions[r]);
}
void take_rest(const KvWriteArgs& own, const KvWriteArgs& live, Fetch& fetch) {
  take_slots(own.paging, live.paging, fetch, [&](const Paging& from, int32_t sequence, int32_t position, int32_t to) {
    fetch.bytes(latent_row(own.kv, own.paging, 0, to), latent_row(live.kv, from, sequence, position),
                own.kv.geometry.latent_row_bytes());
  });
}
void take_rest(const IndexKeyWriteArgs& own, const IndexKeyWriteArgs& live, Fetch& fetch) {
  const KvGeometry& g = own.kv.geometry;
  std::vector<std::byte> page(static_cast<size_t>(g.index_page_bytes()));
  take_slots(own.paging, live.paging, fetch, [&](const Paging& from, int32_t sequence, int32_t position, int32_t to) {
    fetch.bytes(page.data(), index_page(live.kv, from, sequence, position), g.index_page_bytes());
    copy_index_key(g, page.data(), position % from.page_tokens, index_page(own.kv, own.paging, 0, to),
                   to % own.paging.page_tokens);
  });
}

// Fresh memory for everything `args` writes; what is changed in place begins as it was.
void fresh_outputs(AnyArgs& args, Storage& storage) {
  for_tensors(args, [&](const char*, Tensor& tensor, Role role) {
    if (role == Role::In) return;
    const Tensor old = tensor;
    tensor = storage.like(tensor);
    if (role == Role::InOut) std::memcpy(tensor.data, old.data, static_cast<size_t>(old.bytes()));
  });
  std::visit([&](auto& a) { fresh_rest(a, storage); }, args);
}

}  // namespace

OpRecord::OpRecord(const OpCall& call, int64_t first, int64_t count, Executor& executor)
    : site_(call.site), kernel_(&call.kernel), first_(first), count_(count) {
  for (int64_t r = first; r < first + count; ++r) step_rows_.push_back(call.origin.row(r));
  Fetch fetch(executor, storage_);
  before_ = slice_rows(any_args(call.kernel.contract.op, call.args), first, count);
  for_tensors(before_, [&](const char*, Tensor& tensor, Role role) {
    const Tensor live = tensor;
    tensor = storage_.like(tensor);
    if (role != Role::Out) fetch.rows(tensor, live);
  });
  std::visit([&](auto& a) { fetch_rest(a, count, fetch); }, before_);
  have_ = again(storage_);
}

OpRecord::OpRecord(SiteId site, const Kernel& kernel, AnyArgs before, AnyArgs have, std::vector<int32_t> step_rows,
                   Storage storage)
    : site_(site),
      kernel_(&kernel),
      count_(static_cast<int64_t>(step_rows.size())),
      step_rows_(std::move(step_rows)),
      storage_(std::move(storage)),
      before_(before),
      have_(have) {}

void OpRecord::finish(const OpCall& call, Executor& executor) {
  Fetch fetch(executor, storage_);
  AnyArgs live = slice_rows(any_args(call.kernel.contract.op, call.args), first_, count_);
  std::vector<Tensor> written;
  for_tensors(live, [&](const char*, const Tensor& tensor, Role role) {
    if (role != Role::In) written.push_back(tensor);
  });
  size_t next = 0;
  for_tensors(have_, [&](const char*, const Tensor& tensor, Role role) {
    if (role != Role::In) fetch.rows(tensor, written[next++]);
  });
  std::visit([&](const auto& own) { take_rest(own, std::get<std::decay_t<decltype(own)>>(live), fetch); }, have_);
}

int64_t OpRecord::rows_within(const OpCall& call, int64_t bytes) {
  AnyArgs args = any_args(call.kernel.contract.op, call.args);
  int64_t of_a_row = 1;
  for_tensors(args, [&](const char*, const Tensor& tensor, Role role) {
    of_a_row += tensor.dim(1) * bits(tensor.dtype) / 8 * (role == Role::In ? 1 : 2);
  });
  if (const auto* attend = std::get_if<MlaAttendArgs>(&args))
    of_a_row += attend->topk_indices.dim(1) * attend->kv.geometry.latent_row_bytes();
  return std::clamp<int64_t>(bytes / of_a_row, 1, call.rows);
}

// A record is a launch on host memory, of which a record can be made.
OpRecord OpRecord::row(int64_t r) const {
  static const Plan kNoPlan{};
  Executor host(kNoPlan, Stream{});
  const auto call = [this](const AnyArgs& args) {
    return OpCall{.site = site_,
                  .rows = count_,
                  .kernel = *kernel_,
                  .args = raw(args),
                  .origin = {.first = 0, .map = step_rows_.data()}};
  };
  OpRecord one(call(before_), r, 1, host);
  one.finish(call(have_), host);
  return one;
}

AnyArgs OpRecord::again(Storage& storage) const {
  AnyArgs args = before_;
  fresh_outputs(args, storage);
  return args;
}

}  // namespace plumb
