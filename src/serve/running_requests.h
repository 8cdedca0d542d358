// The requests that run, so that an operator can end one by its name. Any thread.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "serve/http.h"

namespace plumb {

class Generation;

class RunningRequests {
 public:
  void add(const std::shared_ptr<Generation>& generation, const std::shared_ptr<Exchange>& exchange,
           std::string answer_id);
  void remove(const Generation* generation);
  // Those whose x-request-id, or whose answer's id, is `name`; all with `all`. Returns how many were told.
  int abort(std::string_view name, bool all);

 private:
  struct Entry {
    std::weak_ptr<Generation> generation{};
    std::shared_ptr<Exchange> exchange{};
    std::string answer_id{};
  };
  std::mutex mutex_{};
  std::unordered_map<const Generation*, Entry> entries_{};
};

}  // namespace plumb
