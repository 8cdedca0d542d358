// api.md M and field-faults.md 7: clients that leave, draining, faults, many streams.
#include <dirent.h>

#include <fstream>
#include <thread>

#include "serve/test_server.h"

namespace plumb {
namespace {

using nlohmann::json;

const char kStreamBody[] = R"({"messages":[{"role":"user","content":"x"}],"stream":true,"max_tokens":4000})";
const char kWholeBody[] = R"({"messages":[{"role":"user","content":"x"}],"max_tokens":4000})";

int thread_count() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind("Threads:", 0) == 0) return std::stoi(line.substr(8));
  return -1;
}

class LifetimeTest : public ServeTest {
 protected:
  LifetimeTest() { script_ = says("</think>" + std::string(3900, 'a')); }
  bool wait_for_metric(const std::string& line) const {
    for (int i = 0; i < 200; ++i) {
      if (http_get(port(), "/metrics").body.find(line) != std::string::npos) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(25));
    }
    return false;
  }
};

TEST_F(LifetimeTest, ApiM71_LeavingStopsTheWorkStreamedOrNot) {
  serve();
  engine_->set_step_us(500);
  int gone = 0;
  for (const char* body : {kStreamBody, kWholeBody}) {
    for (const bool hard : {false, true}) {
      Client client(port());
      client.send(post_text("/v1/chat/completions", body));
      ASSERT_TRUE(engine_->wait_running(1));
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      const uint64_t before = engine_->tokens();
      hard ? client.reset() : client.close();
      ASSERT_TRUE(engine_->wait_idle());
      EXPECT_EQ(engine_->aborts(), static_cast<uint64_t>(++gone));
      EXPECT_LT(engine_->tokens() - before, 2000u) << "the answer was not played to its end";
    }
  }
  EXPECT_NE(http_get(port(), "/metrics").body.find("plumb_generations_total{reason=\"abort\"} 4"), std::string::npos);
}

TEST_F(LifetimeTest, ApiM71_LeavingAtUnusualMoments) {
  serve();
  engine_->set_paused(true);
  {
    Client queued(port());  // before its first token
    queued.send(post_text("/v1/chat/completions", kStreamBody));
    ASSERT_TRUE(engine_->wait_running(1));
  }
  ASSERT_TRUE(wait_for_metric("plumb_generations_total{reason=\"abort\"} 1"));  // the server has seen it leave
  engine_->set_paused(false);
  ASSERT_TRUE(engine_->wait_idle());
  script_.hold_steps = 50;
  engine_->set_step_us(1000);
  {
    Client prefill(port());
    prefill.send(post_text("/v1/chat/completions", R"({"messages":[{"role":"user","content":"x"}],"n":8})"));
    ASSERT_TRUE(engine_->wait_running(8));
  }
  ASSERT_TRUE(engine_->wait_idle());
  EXPECT_EQ(engine_->aborts(), 9u);
  script_ = says("</think>b");
  engine_->set_step_us(0);
  for (int i = 0; i < 50; ++i) {  // right at the end
    Client client(port());
    client.send(post_text("/v1/chat/completions", kStreamBody));
    client.receive(i % 5);
    client.reset();
  }
  ASSERT_TRUE(engine_->wait_idle());
  {
    Client half(port());
    half.send("POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 100\r\n\r\n{");
  }
  EXPECT_EQ(chat("").status, 200);
}

TEST_F(LifetimeTest, SlowReaderIsDroppedAndHoldsUpNobody) {
  ServerOptions options;
  options.http.write_timeout_ms = 300;
  serve(options);
  engine_->set_max_context(1 << 20);
  script_ = says("</think>" + std::string(100'000, 'a'));
  Client slow(port(), /*receive_buffer=*/4096);
  slow.send(
      post_text("/v1/chat/completions",
                R"({"messages":[{"role":"user","content":"x"}],"stream":true,"logprobs":true,"top_logprobs":2})"));
  ASSERT_TRUE(slow.receive_until("HTTP/1.1 200"));
  script_ = says("</think>quick");
  const Answer other = chat(R"("stream":true)");
  EXPECT_EQ(gather_chat(other)[0].content, "quick");
  EXPECT_TRUE(wait_for_metric("plumb_http_connections 1\n"));
}

TEST_F(LifetimeTest, ApiM73_DrainLetsRunningOnesFinish) {
  serve();
  engine_->set_step_us(100);
  script_ = says("</think>" + std::string(2000, 'a'));
  Client running(port());
  running.send(post_text("/v1/chat/completions", kStreamBody));
  ASSERT_TRUE(running.receive_until("\"content\":\"a\""));
  std::thread drain([this] { server_->drain(20'000); });
  while (server_->state() != ServerState::Draining) std::this_thread::yield();
  const Answer late = chat("");
  EXPECT_EQ(late.status, 503);
  EXPECT_EQ(error_of(late)["code"], "draining");
  EXPECT_EQ(late.headers.count("retry-after"), 1u);
  EXPECT_EQ(gather_chat(running.read_answer())[0].content.size(), 2000u);
  drain.join();
  EXPECT_FALSE(Client(port()).ok());
}

TEST_F(LifetimeTest, ApiM73_DrainEndsAtItsLimitWithAnAnswer) {
  serve();
  engine_->set_step_us(5000);
  Client stream(port()), whole(port());
  stream.send(post_text("/v1/chat/completions", kStreamBody));
  whole.send(post_text("/v1/chat/completions", kWholeBody));
  ASSERT_TRUE(engine_->wait_running(2));
  server_->drain(50);
  const Answer cut = stream.read_answer();
  EXPECT_EQ(parsed(sse_events(cut.body).back())["error"]["code"], "aborted");
  EXPECT_EQ(whole.read_answer().status, 503);
}

TEST_F(LifetimeTest, ApiM74_DeadlineHeader) {
  serve();
  script_ = says_until("", FinishReason::Abort);
  script_.hold_steps = 30;
  engine_->set_step_us(1000);
  for (const char* value : {"soon", "0", "-5", "5s", "99999999999999999999"}) {
    const std::string header = std::string("x-request-timeout-ms: ") + value + "\r\n";
    EXPECT_EQ(http_post(port(), "/v1/chat/completions", kWholeBody, header).status, 400) << value;
  }
  const Answer answer = http_post(port(), "/v1/chat/completions", kWholeBody, "x-request-timeout-ms: 5\r\n");
  EXPECT_EQ(answer.status, 408);
  EXPECT_EQ(error_of(answer)["code"], "deadline_exceeded");
  EXPECT_EQ(answer.headers.at("x-should-retry"), "false");
  EXPECT_GT(engine_->requests()[0].deadline_us, 0);
}

TEST_F(LifetimeTest, ApiM75_NumericalFault) {
  serve();
  script_ = {.events = spell("</think>ab")};
  TokenEvent last;
  last.finish = FinishReason::Error;
  last.error = Error{Code::Verification, "numerical fault", "layers.2.self_attn.attend wrote NaN", {}};
  last.incident = std::make_shared<const Incident>(Incident{.id = "inc-42", .site = "layers.2.self_attn.attend"});
  script_.events.push_back(last);
  const Answer whole = chat("");
  EXPECT_EQ(whole.status, 500);
  const json error = error_of(whole);
  EXPECT_EQ(error["type"], "numerical_fault");
  EXPECT_EQ(error["code"], "nan_detected");
  EXPECT_EQ(error["incident_id"], "inc-42");
  EXPECT_EQ(error["provenance"]["site"], "layers.2.self_attn.attend");
  EXPECT_EQ(whole.headers.at("x-should-retry"), "false");
  const Answer stream = chat(R"("stream":true)");
  const json event = parsed(sse_events(stream.body).back())["error"];
  EXPECT_EQ(event["type"], "numerical_fault");
  EXPECT_EQ(event["incident_id"], "inc-42");
  script_ = says("</think>fine");
  EXPECT_EQ(chat("").status, 200);
}

TEST_F(LifetimeTest, TwoThousandOpenStreamsOnAFewThreads) {
  ServerOptions options;
  options.http.io_threads = 2;
  serve(options);
  script_ = says("</think>" + std::string(20, 'a'));
  engine_->set_paused(true);
  const int before = thread_count();
  constexpr int kStreams = 2000;
  std::vector<Client> clients;
  clients.reserve(kStreams);
  for (int i = 0; i < kStreams; ++i) {
    clients.emplace_back(port());
    ASSERT_TRUE(clients.back().ok()) << i;
    ASSERT_TRUE(clients.back().send(post_text("/v1/chat/completions", kStreamBody)));
  }
  ASSERT_TRUE(engine_->wait_running(kStreams, 60'000));
  EXPECT_EQ(thread_count(), before) << "no thread for a stream";
  EXPECT_EQ(http_get(port(), "/health").status, 200);
  engine_->set_paused(false);
  for (Client& client : clients) {
    const Answer answer = client.read_answer();
    ASSERT_EQ(gather_chat(answer)[0].content, std::string(20, 'a'));
  }
  EXPECT_TRUE(engine_->wait_idle());
}

TEST_F(LifetimeTest, HealthAnswersWhileSaturated) {
  serve();
  engine_->set_step_us(1000);
  std::vector<Client> clients;
  for (int i = 0; i < 64; ++i) {
    clients.emplace_back(port());
    clients.back().send(post_text("/v1/chat/completions", kStreamBody));
  }
  ASSERT_TRUE(engine_->wait_running(64));
  for (int i = 0; i < 10; ++i) EXPECT_EQ(http_get(port(), "/health").status, 200);
}

}  // namespace
}  // namespace plumb
