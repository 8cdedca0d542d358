#include "serve/access.h"

#include <charconv>
#include <fstream>
#include <sstream>

#include "serve/http.h"

namespace plumb {

namespace {

// Takes the same time wherever the texts differ.
bool same_secret(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size() && !b.empty(); ++i) {
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i % b.size()]);
  }
  return difference == 0;
}

// "" when the header holds none.
std::string_view bearer_key(const HttpRequest& request) {
  std::string_view given = request.header("authorization");
  static constexpr std::string_view kScheme = "bearer ";
  if (given.size() < kScheme.size()) return request.header("x-api-key");  // Anthropic's clients
  for (size_t i = 0; i < kScheme.size(); ++i) {
    if ((given[i] | 0x20) != (kScheme[i] | 0x20)) return {};
  }
  return given.substr(kScheme.size());
}

bool read_setting(std::string_view word, std::string_view name, int lowest, int& value) {
  if (!word.starts_with(name)) return false;
  word.remove_prefix(name.size());
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  return error == std::errc() && end == word.data() + word.size() && value >= lowest;
}

}  // namespace

Result<std::vector<ApiKey>> read_key_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) return Error{Code::Usage, "--api-key-file " + path, "the file cannot be read", {}};
  std::vector<ApiKey> keys;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    std::istringstream words(line);
    ApiKey key;
    if (!(words >> key.name) || key.name.front() == '#') continue;
    bool fine = static_cast<bool>(words >> key.secret);
    for (std::string word; fine && words >> word;)
      fine = read_setting(word, "requests=", 1, key.max_requests) ||
             read_setting(word, "priority=", -1'000'000, key.priority);
    for (const ApiKey& other : keys) fine = fine && other.name != key.name && other.secret != key.secret;
    // The line itself is not shown: it holds a secret.
    if (!fine)
      return Error{
          Code::Usage,
          path + ":" + std::to_string(number) + ": not NAME KEY [requests=N] [priority=N], or one of them again",
          "",
          {"team-a 6f1c... requests=32"}};
    keys.push_back(std::move(key));
  }
  if (keys.empty()) return Error{Code::Usage, "--api-key-file " + path, "it holds no key, so nobody could ask", {}};
  return keys;
}

AccessControl::AccessControl(std::vector<ApiKey> keys, std::string admin_key) : admin_key_(std::move(admin_key)) {
  for (ApiKey& key : keys) {
    clients_.push_back(std::make_unique<Client>());
    clients_.back()->key = std::move(key);
  }
}

AccessControl::Verdict AccessControl::check(const HttpRequest& request, Access needed, Client*& client) const {
  const std::string_view given = bearer_key(request);
  if (!admin_key_.empty() && same_secret(given, admin_key_)) return Verdict::Granted;
  for (const auto& known : clients_)  // all of them, so that the time tells nothing
    if (same_secret(given, known->key.secret)) client = known.get();
  if (needed == Access::Open) return Verdict::Granted;
  if (!clients_.empty() && client == nullptr) return Verdict::NoKey;
  if (needed == Access::Admin && !admin_key_.empty()) return clients_.empty() ? Verdict::NoKey : Verdict::NotAdmin;
  return Verdict::Granted;
}

std::shared_ptr<void> AccessControl::enter(Client& client) {
  const int limit = client.key.max_requests;
  if (client.running.fetch_add(1) >= limit && limit > 0) {
    client.running.fetch_sub(1);
    return nullptr;
  }
  return {&client, [](Client* c) { c->running.fetch_sub(1); }};
}

}  // namespace plumb
