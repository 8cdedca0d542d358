// Who may ask for what: keys of clients, a key of the administrator's, and each client's own limits.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace plumb {

struct HttpRequest;

struct ApiKey {
  std::string name{};    // in logs, metrics and scheduling; never the secret
  std::string secret{};  // what follows "Bearer "
  int max_requests = 0;  // generations at a time; 0: no limit of its own
  int priority = 0;      // the lowest value its requests may run with; lower runs first
};

// A file with a key on each line: NAME KEY [requests=N] [priority=N]; lines beginning with # are comments.
Result<std::vector<ApiKey>> read_key_file(const std::string& path);

// What a path asks of its caller.
enum class Access : uint8_t { Open, Key, Admin };

class AccessControl {
 public:
  // No keys: everyone may ask everything that the admin key, if there is one, does not guard.
  AccessControl(std::vector<ApiKey> keys, std::string admin_key);

  struct Client {
    ApiKey key{};
    std::atomic<int> running{0};
  };
  enum class Verdict : uint8_t { Granted, NoKey, NotAdmin };
  // `client` becomes the one whose key the request carries; nullptr without keys and for the administrator.
  Verdict check(const HttpRequest& request, Access needed, Client*& client) const;

  // One more generation of the client's, given back when the last copy of the result ends; nullptr at its limit.
  static std::shared_ptr<void> enter(Client& client);

 private:
  std::vector<std::unique_ptr<Client>> clients_{};
  std::string admin_key_{};
};

}  // namespace plumb
