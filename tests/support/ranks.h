// Ranks as threads of one process, joined by sockets.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "comm/socket_communicator.h"

namespace plumb::testing {

inline std::vector<std::unique_ptr<Communicator>> joined_ranks(int ranks, int deadline_ms = 60'000) {
  std::vector<std::unique_ptr<Communicator>> all;
  auto mesh = socket_mesh(ranks);
  if (!mesh) {
    ADD_FAILURE() << mesh.error().to_string();
    return all;
  }
  for (int rank = 0; rank < ranks; ++rank) {
    all.push_back(std::make_unique<SocketCommunicator>(rank, std::move((*mesh)[static_cast<size_t>(rank)])));
    all.back()->set_deadline(std::chrono::milliseconds(deadline_ms));
  }
  return all;
}

// body(communicator) once a rank, each on a thread of its own.
inline void on_each_rank(std::vector<std::unique_ptr<Communicator>>& ranks,
                         const std::function<void(Communicator&)>& body) {
  std::vector<std::thread> threads;
  threads.reserve(ranks.size());
  for (auto& comm : ranks) threads.emplace_back([&body, &comm] { body(*comm); });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace plumb::testing
