#include "serve/test_server.h"

namespace plumb {

using nlohmann::json;

const char kTestTemplate[] =
    "[gMASK]<sop>"
    "{%- if tools -%}<|system|>{{ tools | tojson }}{%- endif -%}"
    "{%- for m in messages -%}"
    "{%- if m.role == 'system' -%}<|system|>{{ m.content }}"
    "{%- elif m.role == 'user' -%}<|user|>"
    "{%- if m.content is string -%}{{ m.content }}{%- else -%}{%- for p in m.content -%}{{ p.text }}{%- endfor -%}{%- "
    "endif -%}"
    "{%- elif m.role == 'assistant' -%}<|assistant|>"
    "{%- if m.reasoning_content is string -%}<think>{{ m.reasoning_content }}{%- endif -%}</think>{{ m.content or '' }}"
    "{%- if m.tool_calls -%}{%- for c in m.tool_calls -%}<tool_call>{{ c.function.name }}"
    "{%- for k, v in c.function.arguments.items() -%}<arg_key>{{ k }}</arg_key><arg_value>{{ v }}</arg_value>"
    "{%- endfor -%}</tool_call>{%- endfor -%}{%- "
    "endif -%}"
    "{%- elif m.role == 'tool' -%}<|observation|>{{ m.content }}"
    "{%- else -%}{{ raise_exception('unknown role') }}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|assistant|>"
    "{{- '</think>' if (enable_thinking is defined and not enable_thinking) else '<think>' -}}"
    "{%- endif -%}";

std::string byte_tokenizer_json() {
  json vocab = json::object();
  int next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool itself = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    const int point = itself ? byte : next++;
    std::string text;
    if (point < 0x80) {
      text = static_cast<char>(point);
    } else {
      text = {static_cast<char>(0xc0 | (point >> 6)), static_cast<char>(0x80 | (point & 0x3f))};
    }
    vocab[text] = byte;
  }
  json added = json::array();
  const auto add = [&](int id, const char* text, bool special) {
    added.push_back({{"id", id},
                     {"content", text},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", special}});
  };
  add(kEndOfText, "<|endoftext|>", true);
  add(kUser, "<|user|>", true);
  add(kAssistant, "<|assistant|>", true);
  add(kThink, "<think>", false);
  add(kEndThink, "</think>", false);
  add(kSystem, "<|system|>", true);
  const json level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  return json{{"version", "1.0"},
              {"truncation", nullptr},
              {"padding", nullptr},
              {"added_tokens", added},
              {"normalizer", nullptr},
              {"pre_tokenizer", level},
              {"post_processor", nullptr},
              {"decoder", level},
              {"model",
               {{"type", "BPE"},
                {"dropout", nullptr},
                {"unk_token", nullptr},
                {"continuing_subword_prefix", nullptr},
                {"end_of_word_suffix", nullptr},
                {"fuse_unk", false},
                {"byte_fallback", false},
                {"ignore_merges", false},
                {"vocab", vocab},
                {"merges", json::array()}}}}
      .dump();
}

std::vector<TokenEvent> spell(std::string_view text) {
  std::vector<TokenEvent> events;
  const auto add = [&](int32_t id) {
    TokenEvent event;
    event.id = id;
    event.logprob = {id, -0.5f};
    event.top = {{id, -0.5f}, {id == 'z' ? 'y' : 'z', -3.25f}};
    events.push_back(event);
  };
  while (!text.empty()) {
    const bool begin = text.starts_with("<think>"), end = text.starts_with("</think>");
    add(begin ? kThink : end ? kEndThink : static_cast<unsigned char>(text[0]));
    text.remove_prefix(begin ? 7 : end ? 8 : 1);
  }
  return events;
}

Script says_until(std::string_view text, FinishReason reason, int32_t stop_id) {
  Script script{.events = spell(text)};
  TokenEvent last;
  last.finish = reason;
  last.stop_id = stop_id;
  script.events.push_back(last);
  return script;
}

Script says(std::string_view text) { return says_until(text, FinishReason::Stop, kUser); }

json parsed(std::string_view text) {
  json value = json::parse(text, nullptr, /*allow_exceptions=*/false);
  EXPECT_FALSE(value.is_discarded()) << "no JSON: " << text;
  return value.is_discarded() ? json::object() : value;
}

ServeTest::ServeTest() {
  Result<Tokenizer> tokenizer = Tokenizer::parse(byte_tokenizer_json(), "");
  EXPECT_TRUE(tokenizer.has_value()) << (tokenizer ? "" : tokenizer.error().to_string());
  tokenizer_ = std::make_unique<Tokenizer>(*std::move(tokenizer));
  Result<ChatTemplate> chat_template = ChatTemplate::parse(kTestTemplate, "");
  EXPECT_TRUE(chat_template.has_value()) << (chat_template ? "" : chat_template.error().to_string());
  template_ = std::make_unique<ChatTemplate>(*std::move(chat_template));
  engine_ = std::make_unique<FakeEngine>([this](const GenerateRequest&) { return script_; });
}

ServeTest::~ServeTest() {
  server_.reset();
  engine_.reset();
}

void ServeTest::serve(ServerOptions options) {
  options.http.port = 0;
  if (options.served_names.empty()) options.served_names = {"test-model", "org/alias"};
  options.access_log = false;
  services_.engine = engine_.get();
  services_.tokenizer = tokenizer_.get();
  services_.chat_template = template_.get();
  services_.root = "models/test";
  services_.model_type = "glm_moe_dsa";
  services_.vocab_size = kVocab;
  services_.eos_ids = {kEndOfText, kUser};
  services_.fingerprint = "fp_0123456789abcdef";
  services_.plan_json = R"({"plan":[]})";
  services_.build_json = R"({"version":"test"})";
  services_.created = 1700000000;
  server_ = std::make_unique<Server>(std::move(options));
  const Status status = server_->start();
  ASSERT_TRUE(status.has_value()) << (status ? "" : status.error().to_string());
  server_->set_model(services_);
  server_->set_state(ServerState::Ready);
}

Answer ServeTest::chat(const std::string& extra, const std::string& messages) const {
  return http_post(port(), "/v1/chat/completions",
                   R"({"model":"test-model","messages":)" + messages + (extra.empty() ? "" : ",") + extra + "}");
}

Answer ServeTest::completion(const std::string& extra) const {
  return http_post(port(), "/v1/completions", R"({"model":"test-model",)" + extra + "}");
}

json ServeTest::error_of(const Answer& answer) const {
  const json body = parsed(answer.body);
  EXPECT_TRUE(body.contains("error")) << answer.body;
  if (!body.contains("error")) return json::object();
  const json& error = body["error"];
  EXPECT_TRUE(error["message"].is_string());
  EXPECT_TRUE(error["type"].is_string());
  EXPECT_TRUE(error.contains("param") && (error["param"].is_string() || error["param"].is_null()));
  EXPECT_TRUE(error.contains("code") && (error["code"].is_string() || error["code"].is_null()));
  return error;
}

void ServeTest::expect_400(const Answer& answer, const std::string& param) const {
  EXPECT_EQ(answer.status, 400) << answer.body;
  EXPECT_EQ(error_of(answer)["param"], param) << answer.body;
}

std::vector<Streamed> gather_chat(const Answer& answer, int choices) {
  std::vector<Streamed> result(static_cast<size_t>(choices));
  EXPECT_EQ(answer.status, 200);
  EXPECT_TRUE(answer.whole);
  const std::vector<std::string> events = sse_events(answer.body);
  EXPECT_FALSE(events.empty());
  if (events.empty()) return result;
  EXPECT_EQ(events.back(), "[DONE]");
  std::string id;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const json chunk = parsed(events[i]);
    EXPECT_EQ(chunk["object"], "chat.completion.chunk");
    EXPECT_TRUE(chunk["created"].is_number_integer());
    if (id.empty()) id = chunk["id"];
    EXPECT_EQ(chunk["id"], id);
    for (const json& choice : chunk["choices"]) {
      Streamed& s = result.at(choice["index"].get<size_t>());
      ++s.chunks;
      const json& delta = choice["delta"];
      EXPECT_EQ(s.finishes, 0) << "a chunk after the finish_reason";
      if (delta.contains("role")) s.role += delta["role"].get<std::string>();
      if (delta.contains("content")) s.content += delta["content"].get<std::string>();
      if (delta.contains("reasoning_content")) s.reasoning += delta["reasoning_content"].get<std::string>();
      if (choice["logprobs"].is_object()) {
        for (const json& entry : choice["logprobs"]["content"]) s.logprobs.push_back(entry);
      }
      if (choice["finish_reason"].is_null()) continue;
      ++s.finishes;
      s.finish = choice["finish_reason"];
      s.stop_reason = choice["stop_reason"];
      EXPECT_TRUE(delta.empty());
    }
  }
  return result;
}

}  // namespace plumb
