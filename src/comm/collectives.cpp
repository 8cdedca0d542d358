#include "comm/collectives.h"

#include <unistd.h>

#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/thread_pool.h"
#include "tensor/encode.h"

namespace plumb {
namespace {

using Out = Communicator::Out;
using In = Communicator::In;

// Above this, each rank sums a slice and the slices are exchanged: twice the messages, far fewer bytes. Not measured on
// a network of machines; on one machine anything from 16 to 256 KiB is alike.
constexpr size_t kOneShotBytes = size_t{64} << 10;
constexpr size_t kMostRanks = 1024;

float load(float value) { return value; }
float load(uint16_t value) { return bf16_to_f32(value); }
void store(float value, float& to) { to = value; }
void store(float value, uint16_t& to) { to = f32_to_bf16(value); }

// mine[i] = sum over ranks r of (r == rank ? mine : others[r])[i], in order of rank.
template <class T>
void sum_in_order(int rank, int size, T* mine, const T* others, size_t stride, size_t count) {
  constexpr size_t kBlock = 1024;
  std::array<float, kBlock> sum;
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t block = std::min(kBlock, count - begin);
    for (int r = 0; r < size; ++r) {
      const T* from = (r == rank ? mine : others + static_cast<size_t>(r) * stride) + begin;
      if (r == 0)
        for (size_t i = 0; i < block; ++i) sum[i] = load(from[i]);
      else
        for (size_t i = 0; i < block; ++i) sum[i] += load(from[i]);
    }
    for (size_t i = 0; i < block; ++i) store(sum[i], mine[begin + i]);
  }
}

// The parts of one exchange, without an allocation for the usual numbers of ranks.
struct Parts {
  explicit Parts(const Communicator& comm)
      : size(static_cast<size_t>(comm.size())), rank(static_cast<size_t>(comm.rank())) {
    PLUMB_CHECK(size <= kMostRanks, "more ranks than collectives are made for");
    if (size <= few_out.size()) return;
    many_out.resize(size);
    many_in.resize(size);
  }
  std::span<Out> out() { return size <= few_out.size() ? std::span(few_out).first(size) : std::span(many_out); }
  std::span<In> in() { return size <= few_in.size() ? std::span(few_in).first(size) : std::span(many_in); }

  size_t size, rank;
  std::array<Out, 16> few_out{};
  std::array<In, 16> few_in{};
  std::vector<Out> many_out{};
  std::vector<In> many_in{};
};

void put(std::span<const std::byte> from, std::span<std::byte> to) {
  PLUMB_CHECK(from.size() <= to.size() && from.size() < size_t{1} << 48, "a part has its place");
  if (from.data() != to.data()) std::copy(from.begin(), from.end(), to.begin());
}

template <class T>
Status one_shot(Communicator& comm, std::span<T> values) {
  Parts parts(comm);
  const In others = comm.scratch(values.size_bytes() * parts.size);
  for (size_t p = 0; p < parts.size; ++p) {
    if (p == parts.rank) continue;
    parts.out()[p] = std::as_bytes(values);
    parts.in()[p] = others.subspan(p * values.size_bytes(), values.size_bytes());
  }
  PLUMB_TRY_STATUS(comm.exchange(parts.out(), parts.in()));
  sum_in_order(comm.rank(), comm.size(), values.data(), reinterpret_cast<const T*>(others.data()), values.size(),
               values.size());
  return Ok{};
}

template <class T>
Status two_shot(Communicator& comm, std::span<T> values) {
  Parts parts(comm);
  const auto slice = [&](size_t p) {
    const Range range = split(static_cast<int64_t>(values.size()), static_cast<int>(p), comm.size());
    return values.subspan(static_cast<size_t>(range.begin), static_cast<size_t>(range.end - range.begin));
  };
  const std::span<T> mine = slice(parts.rank);
  const In others = comm.scratch(mine.size_bytes() * parts.size);
  for (size_t p = 0; p < parts.size; ++p) {
    if (p == parts.rank) continue;
    parts.out()[p] = std::as_bytes(slice(p));
    parts.in()[p] = others.subspan(p * mine.size_bytes(), mine.size_bytes());
  }
  PLUMB_TRY_STATUS(comm.exchange(parts.out(), parts.in()));
  sum_in_order(comm.rank(), comm.size(), mine.data(), reinterpret_cast<const T*>(others.data()), mine.size(),
               mine.size());
  for (size_t p = 0; p < parts.size; ++p) {
    if (p == parts.rank) continue;
    parts.out()[p] = std::as_bytes(mine);
    parts.in()[p] = std::as_writable_bytes(slice(p));
  }
  return comm.exchange(parts.out(), parts.in());
}

template <class T>
Status reduce(Communicator& comm, std::span<T> values) {
  if (comm.size() == 1 || values.empty()) return Ok{};
  return comm.size() > 2 && values.size_bytes() > kOneShotBytes ? two_shot(comm, values) : one_shot(comm, values);
}

}  // namespace

Status all_reduce(Communicator& comm, std::span<float> values) { return reduce(comm, values); }
Status all_reduce_bf16(Communicator& comm, std::span<uint16_t> values) { return reduce(comm, values); }

Status all_gather(Communicator& comm, std::span<const std::byte> mine, std::span<std::byte> all) {
  Parts parts(comm);
  PLUMB_CHECK(all.size() == mine.size() * parts.size, "a gather has room for every rank's part");
  if (mine.empty()) return Ok{};
  for (size_t p = 0; p < parts.size; ++p) {
    const In place = all.subspan(p * mine.size(), mine.size());
    if (p == parts.rank) {
      put(mine, place);
      continue;
    }
    parts.out()[p] = mine;
    parts.in()[p] = place;
  }
  return comm.exchange(parts.out(), parts.in());
}

Status gather(Communicator& comm, int root, std::span<const std::byte> mine, std::span<std::byte> all) {
  Parts parts(comm);
  if (mine.empty()) return Ok{};
  if (comm.rank() != root) {
    parts.out()[static_cast<size_t>(root)] = mine;
    return comm.exchange(parts.out(), parts.in());
  }
  PLUMB_CHECK(all.size() == mine.size() * parts.size, "a gather has room for every rank's part");
  for (size_t p = 0; p < parts.size; ++p) {
    const In place = all.subspan(p * mine.size(), mine.size());
    if (p == parts.rank)
      put(mine, place);
    else
      parts.in()[p] = place;
  }
  return comm.exchange(parts.out(), parts.in());
}

Status gather_columns(Communicator& comm, std::span<float> values, int64_t rows, int64_t n, int64_t stride,
                      int64_t share) {
  Parts parts(comm);
  if (comm.rank() != 0) {
    parts.out()[0] = std::as_bytes(values);
    return comm.exchange(parts.out(), parts.in());
  }
  const auto width = [&](size_t p) { return std::min(share, n - share * static_cast<int64_t>(p)); };
  const In memory = comm.scratch(static_cast<size_t>(rows * n) * sizeof(float));
  size_t at = 0;
  for (size_t p = 1; p < parts.size; ++p) {
    parts.in()[p] = memory.subspan(at, static_cast<size_t>(rows * width(p)) * sizeof(float));
    at += parts.in()[p].size();
  }
  PLUMB_TRY_STATUS(comm.exchange(parts.out(), parts.in()));
  for (int64_t t = 0; t < rows; ++t) {
    for (size_t p = 1; p < parts.size; ++p)
      std::copy_n(reinterpret_cast<const float*>(parts.in()[p].data()) + t * width(p), width(p),
                  values.data() + t * stride + share * static_cast<int64_t>(p));
  }
  return Ok{};
}

Status broadcast(Communicator& comm, int root, std::span<std::byte> data) {
  Parts parts(comm);
  if (data.empty()) return Ok{};
  if (comm.rank() != root) {
    parts.in()[static_cast<size_t>(root)] = data;
  } else {
    for (size_t p = 0; p < parts.size; ++p)
      if (p != parts.rank) parts.out()[p] = data;
  }
  return comm.exchange(parts.out(), parts.in());
}

Status barrier(Communicator& comm) {
  std::array<std::byte, kMostRanks> all{};
  const std::byte here{1};
  return all_gather(comm, std::span(&here, 1), std::span(all).first(static_cast<size_t>(comm.size())));
}

Result<std::vector<std::string>> all_gather_text(Communicator& comm, std::string_view mine) {
  const auto ranks = static_cast<size_t>(comm.size());
  std::vector<uint64_t> lengths(ranks);
  const uint64_t length = mine.size();
  PLUMB_TRY_STATUS(all_gather(comm, std::as_bytes(std::span(&length, 1)), std::as_writable_bytes(std::span(lengths))));
  std::vector<std::string> texts(ranks);
  Parts parts(comm);
  for (size_t p = 0; p < ranks; ++p) {
    texts[p].resize(lengths[p]);
    if (p == parts.rank) {
      texts[p] = mine;
      continue;
    }
    parts.out()[p] = std::as_bytes(std::span(mine));
    parts.in()[p] = std::as_writable_bytes(std::span(texts[p]));
  }
  PLUMB_TRY_STATUS(comm.exchange(parts.out(), parts.in()));
  return texts;
}

Status share_failure(Communicator& comm, const Status& mine) {
  PLUMB_TRY(const std::vector<std::string> all, all_gather_text(comm, mine ? "" : mine.error().what));
  if (!mine) return mine;
  for (size_t rank = 0; rank < all.size(); ++rank)
    if (!all[rank].empty())
      return Error{Code::Environment, comm.name_of(static_cast<int>(rank)) + ": " + all[rank], "", {}};
  return Ok{};
}

Status introduce(Communicator& comm) {
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) host[0] = '?';
  PLUMB_TRY(const std::vector<std::string> names,
            all_gather_text(comm, std::string(host.data()) + ", process " + std::to_string(getpid())));
  for (int rank = 0; rank < comm.size(); ++rank) comm.set_name(rank, names[static_cast<size_t>(rank)]);
  return Ok{};
}

}  // namespace plumb
