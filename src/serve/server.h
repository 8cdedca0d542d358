// The server: listens at once, answers 503 until a model is given and the state is ready, drains at the end.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "serve/access.h"
#include "serve/answer_writer.h"
#include "serve/http.h"

namespace plumb {

class ChatTemplate;
class EngineApi;
class Tokenizer;

enum class ServerState : uint8_t { Loading, Verifying, Ready, Draining, Failed };
std::string_view state_name(ServerState state);

struct ServerOptions {
  HttpOptions http{};
  std::vector<ApiKey> keys{};               // none: any or no key is accepted
  std::string admin_key{};                  // guards what operators ask; "": the other keys do
  std::vector<std::string> served_names{};  // the first is the main one; must not be empty
  bool accept_any_model = false;            // a request's unknown `model` is served instead of 404
  bool generate_endpoint = false;           // POST /generate, in SGLang's form
  bool allow_chat_template = false;         // a request may bring its own
  bool strict_fields = false;               // unknown request fields are 400
  bool match_special_in_content = false;    // Hugging Face's way: user text can make control tokens
  ReasoningField reasoning_field = ReasoningField::ReasoningContent;
  bool access_log = true;
  std::string trace_file{};      // "": no traces are written
  int request_timeout_ms = 0;    // longest a request may take; 0: no limit of ours
  bool vllm_metrics = false;     // the vllm: names beside our own
  bool web = true;               // the page at /
  int pool_threads = 2;          // templates and tokenising
  int pool_queue = 8192;         // as many as connections: a burst waits here, the engine's own queue decides on 429
  int max_choices_total = 1024;  // prompts x n of one request
};

// What the model brings; all of it outlives the server's drain() or stop().
struct ModelServices {
  EngineApi* engine = nullptr;
  const Tokenizer* tokenizer = nullptr;
  const ChatTemplate* chat_template = nullptr;  // nullptr: the checkpoint has none, chat answers 400
  std::string root{};                           // the model's path or name, shown in /v1/models
  std::string model_type{};
  int vocab_size = 0;
  std::vector<int32_t> eos_ids{};
  float default_temperature = 1.0f, default_top_p = 1.0f;  // generation_config.json
  int default_top_k = 0;
  std::string weight_format{}, kv_format{};
  std::string fingerprint{};  // of checkpoint, plan and build: system_fingerprint
  std::string plan_json{};
  std::string build_json{};  // an object
  int64_t created = 0;       // Unix seconds
};

class Server {
 public:
  explicit Server(ServerOptions options);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  Status start();
  uint16_t port() const;

  // Once, before the state becomes Ready.
  void set_model(ModelServices model);
  // JSON of the receipt; GET /verification is 404 until there is one. May be called once.
  void set_verification(std::string json);
  void set_state(ServerState state);
  ServerState state() const;

  // 503 to what is new, lets what runs finish for at most `timeout_ms`, then stops. Blocks.
  void drain(int64_t timeout_ms);
  // At once.
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace plumb
