// Keys, the administrator's key, limits of each key, traces, and what the log and the metrics say.
#include <fstream>
#include <thread>

#include "serve/test_server.h"
#include "serve/trace_context.h"
#include "support/folder.h"

namespace plumb {
namespace {

using nlohmann::json;

std::string bearer(const std::string& key) { return "Authorization: Bearer " + key + "\r\n"; }

class AccessTest : public ServeTest {
 protected:
  int get(const std::string& path, const std::string& key) const {
    return http_get(port(), path, key.empty() ? "" : bearer(key)).status;
  }
  Answer ask(const std::string& key, const std::string& extra = "") const {
    return http_post(port(), "/v1/chat/completions", R"({"messages":[{"role":"user","content":"x"}])" + extra + "}",
                     bearer(key));
  }
  std::string written(const std::string& text) const {
    const std::string path = (folder_.path() / "file").string();
    std::ofstream(path) << text;
    return path;
  }
  testing::TemporaryFolder folder_{};
};

TEST_F(AccessTest, EachKeyOpensWhatItIsFor) {
  ServerOptions options;
  options.keys = {{.name = "a", .secret = "key-a"}, {.name = "b", .secret = "key-b"}};
  options.admin_key = "root";
  serve(options);
  for (const char* path : {"/metrics", "/plan", "/verification"}) {
    EXPECT_EQ(get(path, ""), 401) << path;
    EXPECT_EQ(get(path, "key-x"), 401) << path;
    EXPECT_EQ(get(path, "key-a"), 403) << path;
    EXPECT_NE(get(path, "root"), 403) << path;
  }
  EXPECT_EQ(get("/metrics", "root"), 200);
  EXPECT_EQ(get("/health", ""), 200);
  EXPECT_EQ(get("/v1/models", "key-b"), 200);
  EXPECT_EQ(get("/v1/models", "key-"), 401);
  EXPECT_EQ(get("/v1/models", "key-bb"), 401);
  EXPECT_EQ(get("/nowhere", ""), 401) << "what exists is not told to strangers";
  EXPECT_EQ(http_get(port(), "/v1/models", "x-api-key: key-a\r\n").status, 200) << "Anthropic's clients' header";
  EXPECT_EQ(error_of(http_get(port(), "/plan", bearer("key-a")))["code"], "admin_key_required");
}

TEST_F(AccessTest, AnAdminKeyAloneLeavesTheRestOpen) {
  ServerOptions options;
  options.admin_key = "root";
  serve(options);
  EXPECT_EQ(get("/v1/models", ""), 200);
  EXPECT_EQ(get("/metrics", ""), 401);
  EXPECT_EQ(get("/metrics", "root"), 200);
}

TEST_F(AccessTest, AKeysOwnLimitHoldsItAlone) {
  ServerOptions options;
  options.keys = {{.name = "small", .secret = "s", .max_requests = 2, .priority = 5}, {.name = "other", .secret = "o"}};
  serve(options);
  engine_->set_paused(true);
  std::vector<Client> clients;
  const std::string body = R"({"messages":[{"role":"user","content":"x"}],"priority":-3})";
  for (int i = 0; i < 2; ++i) {
    clients.emplace_back(port());
    clients.back().send(post_text("/v1/chat/completions", body, bearer("s")));
  }
  ASSERT_TRUE(engine_->wait_running(2));
  const Answer refused = ask("s");
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.headers.count("retry-after"), 1u);
  EXPECT_EQ(error_of(refused)["code"], "key_limit");
  engine_->set_paused(false);
  EXPECT_EQ(ask("o").status, 200);
  for (Client& client : clients) EXPECT_EQ(client.read_answer().status, 200);
  EXPECT_EQ(ask("s").status, 200) << "its places came back";
  EXPECT_EQ(engine_->requests()[0].client, "small");
  EXPECT_EQ(engine_->requests()[0].priority, 5) << "its key does not let it run ahead";
}

TEST_F(AccessTest, KeyFilesAreReadStrictlyAndNeverShown) {
  const Result<std::vector<ApiKey>> keys =
      read_key_file(written("# clients\n\na secret-1 requests=4 priority=-2\nb secret-2\n"));
  ASSERT_TRUE(keys) << keys.error().to_string();
  ASSERT_EQ(keys->size(), 2u);
  EXPECT_EQ((*keys)[0].secret, "secret-1");
  EXPECT_EQ((*keys)[0].max_requests, 4);
  EXPECT_EQ((*keys)[0].priority, -2);
  for (const char* text : {"a\n", "a secret requests=0\n", "a secret requests=x\n", "a secret other=1\n",
                           "a secret\nb secret\n", "a secret\na other\n", "# none\n"}) {
    const Result<std::vector<ApiKey>> bad = read_key_file(written(text));
    ASSERT_FALSE(bad) << text;
    EXPECT_EQ(bad.error().to_string().find("secret"), std::string::npos) << bad.error().to_string();
  }
  EXPECT_FALSE(read_key_file((folder_.path() / "absent").string()));
}

TEST_F(AccessTest, TheServersLimitOfTimeHolds) {
  ServerOptions options;
  options.request_timeout_ms = 5;
  serve(options);
  script_ = says_until("", FinishReason::Abort);
  script_.hold_steps = 30;
  engine_->set_step_us(1000);
  EXPECT_EQ(chat("").status, 408);
  EXPECT_GT(engine_->requests()[0].deadline_us, 0);
}

TEST_F(AccessTest, ARequestsOwnTemplateNeedsTheServersLeave) {
  const std::string own = R"j("chat_template":"{% for m in messages %}({{ m.content }}){% endfor %}")j";
  serve();
  expect_400(chat(own), "chat_template");
  stop();
  ServerOptions options;
  options.allow_chat_template = true;
  serve(options);
  EXPECT_EQ(chat(own).status, 200);
  EXPECT_EQ(tokenizer_->decode(engine_->requests().back().prompt_ids, true), "(hi)");
  const Answer broken = chat(R"("chat_template":"{% for %}")");
  expect_400(broken, "chat_template");
  EXPECT_EQ(error_of(broken)["code"], "template_error");
  EXPECT_EQ(chat(R"("chat_template":null)").status, 200);
}

TEST(TraceContextTest, ReadsWhatTheSpecificationAllows) {
  std::mt19937_64 random(1);
  const std::string trace = "4bf92f3577b34da6a3ce929d0e0e4736", span = "00f067aa0ba902b7";
  for (const std::string& header : {"00-" + trace + "-" + span + "-01", "cc-" + trace + "-" + span + "-01-more"}) {
    const TraceContext read = read_traceparent(header, random);
    EXPECT_EQ(read.trace_id, trace);
    EXPECT_EQ(read.parent_span_id, span);
    EXPECT_TRUE(read.sampled);
    EXPECT_EQ(traceparent_of(read), "00-" + trace + "-" + read.span_id + "-01");
    EXPECT_NE(read.span_id, span);
  }
  EXPECT_FALSE(read_traceparent("00-" + trace + "-" + span + "-00", random).sampled);
  const std::string upper = "4BF92F3577B34DA6A3CE929D0E0E4736", zero(32, '0');
  for (const std::string& header :
       {std::string(), "ff-" + trace + "-" + span + "-01", "00-" + upper + "-" + span + "-01",
        "00-" + zero + "-" + span + "-01", "00-" + trace + "-" + span + "-01-x", "00-" + trace + "-" + span}) {
    const TraceContext made = read_traceparent(header, random);
    EXPECT_NE(made.trace_id, trace) << header;
    EXPECT_EQ(made.trace_id.size(), 32u);
    EXPECT_EQ(made.parent_span_id, "");
  }
}

TEST_F(AccessTest, ATraceIsPassedOnAndWritten) {
  ServerOptions options;
  options.trace_file = (folder_.path() / "spans.jsonl").string();
  serve(options);
  const std::string trace = "4bf92f3577b34da6a3ce929d0e0e4736";
  const Answer answer =
      http_post(port(), "/v1/chat/completions", R"({"messages":[{"role":"user","content":"private"}]})",
                "traceparent: 00-" + trace + "-00f067aa0ba902b7-01\r\n");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.headers.at("traceparent").substr(0, 36), "00-" + trace + "-");
  stop();  // the line is written after the answer's last byte
  std::ifstream file(options.trace_file);
  std::string line;
  ASSERT_TRUE(std::getline(file, line));
  EXPECT_EQ(line.find("private"), std::string::npos);
  const json span = parsed(line)["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
  EXPECT_EQ(span["traceId"], trace);
  EXPECT_EQ(span["parentSpanId"], "00f067aa0ba902b7");
  EXPECT_EQ(span["spanId"], answer.headers.at("traceparent").substr(36, 16));
  EXPECT_EQ(span["name"], "POST /v1/chat/completions");
  EXPECT_LT(std::stoull(span["startTimeUnixNano"].get<std::string>()),
            std::stoull(span["endTimeUnixNano"].get<std::string>()));
  std::map<std::string, json> attributes;
  for (const json& attribute : span["attributes"]) attributes[attribute["key"]] = attribute["value"];
  EXPECT_EQ(attributes["http.response.status_code"]["intValue"], "200");
  EXPECT_EQ(attributes["plumb.completion_tokens"]["intValue"], "5");
  EXPECT_EQ(attributes["plumb.finish"]["stringValue"], "stop");
}

TEST_F(AccessTest, TheOtherServersNamesAreThereWhenAskedFor) {
  ServerOptions options;
  options.vllm_metrics = true;
  serve(options);
  EXPECT_EQ(chat("").status, 200);
  const std::string text = http_get(port(), "/metrics").body;
  for (const char* line : {"vllm:num_requests_running{model_name=\"test-model\"} 0",
                           "vllm:request_success_total{finished_reason=\"stop\",model_name=\"test-model\"} 1",
                           "vllm:time_to_first_token_seconds_count{model_name=\"test-model\"} 1",
                           "vllm:kv_cache_usage_perc{model_name=\"test-model\"} "})
    EXPECT_NE(text.find(line), std::string::npos) << line << " in\n" << text;
  stop();
  serve();
  EXPECT_EQ(http_get(port(), "/metrics").body.find("vllm:"), std::string::npos);
}

}  // namespace
}  // namespace plumb
