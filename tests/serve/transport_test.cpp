// api.md A and N: status, headers, malformed input, connections.
#include <sys/un.h>

#include <thread>

#include "serve/test_server.h"

namespace plumb {
namespace {

using nlohmann::json;

TEST_F(ServeTest, ApiA01_ContentTypes) {
  serve();
  const Answer whole = chat("");
  EXPECT_EQ(whole.status, 200) << whole.body;
  EXPECT_EQ(whole.headers.at("content-type"), "application/json");
  const Answer stream = chat(R"("stream":true)");
  EXPECT_EQ(stream.headers.at("content-type").rfind("text/event-stream", 0), 0u);
  EXPECT_EQ(stream.headers.at("cache-control"), "no-cache");
  EXPECT_EQ(stream.headers.at("transfer-encoding"), "chunked");
  EXPECT_EQ(stream.headers.count("content-encoding"), 0u);
}

TEST_F(ServeTest, ApiA01_EventsAreFlushedOneByOne) {
  serve();
  engine_->set_step_us(200'000);
  Client client(port());
  client.send(post_text("/v1/chat/completions", R"({"messages":[{"role":"user","content":"x"}],"stream":true})"));
  ASSERT_TRUE(client.receive_until("\"reasoning_content\":\"H\""));
  EXPECT_EQ(client.buffer().find("\"reasoning_content\":\"e\""), std::string::npos);
}

TEST_F(ServeTest, ApiA02_ErrorBody) {
  serve();
  const Answer answer = chat(R"("temperature":3)");
  EXPECT_EQ(answer.status, 400);
  const json error = error_of(answer);
  EXPECT_EQ(error["param"], "temperature");
  EXPECT_TRUE(error["code"].is_string());
  EXPECT_EQ(error["type"], "invalid_request_error");
}

TEST_F(ServeTest, ApiA03_StatusOfUnknownModelAndRoute) {
  serve();
  const Answer model =
      http_post(port(), "/v1/chat/completions", R"({"model":"other","messages":[{"role":"user","content":"hi"}]})");
  EXPECT_EQ(model.status, 404);
  EXPECT_EQ(error_of(model)["code"], "model_not_found");
  EXPECT_EQ(http_get(port(), "/v1/nothing").status, 404);
  EXPECT_EQ(http_post(port(), "/v1/embeddings", "{}").status, 404);
  const Answer method = http_get(port(), "/v1/chat/completions");
  EXPECT_EQ(method.status, 405);
  EXPECT_EQ(method.headers.at("allow"), "POST, OPTIONS");
}

TEST_F(ServeTest, ApiA03_FullQueueIs429WithRetryAfter) {
  serve();
  engine_->set_capacity(0);
  const Answer answer = chat("");
  EXPECT_EQ(answer.status, 429);
  EXPECT_EQ(error_of(answer)["code"], "queue_full");
  EXPECT_EQ(answer.headers.at("retry-after"), "1");
}

TEST_F(ServeTest, ApiA04_NotReadyIs503WithRetryAfter) {
  serve();
  for (const ServerState state : {ServerState::Loading, ServerState::Verifying, ServerState::Draining}) {
    server_->set_state(state);
    const Answer answer = chat("");
    EXPECT_EQ(answer.status, 503);
    EXPECT_EQ(answer.headers.count("retry-after"), 1u);
    EXPECT_EQ(error_of(answer)["code"], std::string(state_name(state)));
  }
}

TEST_F(ServeTest, ApiA05_RequestId) {
  serve();
  EXPECT_EQ(http_get(port(), "/health", "X-Request-Id: my-id.7\r\n").headers.at("x-request-id"), "my-id.7");
  const Answer error = http_post(port(), "/v1/completions", "{", "x-request-id: abc\r\n");
  EXPECT_EQ(error.status, 400);
  EXPECT_EQ(error.headers.at("x-request-id"), "abc");
  const std::string first = http_get(port(), "/health").headers.at("x-request-id");
  EXPECT_NE(first, http_get(port(), "/health").headers.at("x-request-id"));
  EXPECT_NE(http_get(port(), "/health", "x-request-id: bad id <>\r\n").headers.at("x-request-id"), "bad id <>");
}

TEST_F(ServeTest, ApiA06_WithoutAKeyAnyIsAccepted) {
  serve();
  EXPECT_EQ(http_get(port(), "/v1/models", "Authorization: Bearer anything\r\n").status, 200);
}

TEST_F(ServeTest, ApiA06_KeyIsAskedForAlsoForStreams) {
  ServerOptions options;
  options.keys = {{.name = "a", .secret = "s3cret"}};
  serve(options);
  const Answer none =
      http_post(port(), "/v1/chat/completions", R"({"messages":[{"role":"user","content":"hi"}],"stream":true})");
  EXPECT_EQ(none.status, 401);
  EXPECT_EQ(error_of(none)["code"], "invalid_api_key");
  for (const char* wrong : {"Bearer s3cre", "Bearer s3cret2", "s3cret", "Basic s3cret", "Bearer "}) {
    EXPECT_EQ(http_get(port(), "/v1/models", std::string("Authorization: ") + wrong + "\r\n").status, 401) << wrong;
  }
  EXPECT_EQ(http_get(port(), "/v1/models", "Authorization: Bearer s3cret\r\n").status, 200);
  EXPECT_EQ(http_get(port(), "/v1/models", "authorization: bearer s3cret\r\n").status, 200);
  EXPECT_EQ(http_get(port(), "/health").status, 200);
}

TEST_F(ServeTest, ApiA07_UnknownHeadersAreIgnored) {
  serve();
  EXPECT_EQ(
      http_get(port(), "/v1/models", "x-stainless-lang: python\r\nOpenAI-Organization: o\r\nOpenAI-Project: p\r\n")
          .status,
      200);
}

TEST_F(ServeTest, ApiA08_UnknownFieldsAreListedOrRefused) {
  serve();
  const Answer answer = chat(R"("wibble":1,"wobble":{"a":[1]})");
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(answer.headers.at("x-ignored-fields"), "wibble, wobble");
  const Answer stream = chat(R"("wibble":1,"stream":true)");
  EXPECT_EQ(stream.headers.at("x-ignored-fields"), "wibble");
  stop();
  ServerOptions options;
  options.strict_fields = true;
  serve(options);
  expect_400(chat(R"("wibble":1)"), "wibble");
}

TEST_F(ServeTest, ApiA08_KnownButUnsupportedIs400) {
  serve();
  expect_400(chat(R"("audio":{"voice":"x"})"), "audio");
  expect_400(chat(R"("modalities":["audio"])"), "modalities");
  expect_400(chat(R"("prediction":{"type":"content","content":"x"})"), "prediction");
  expect_400(chat(R"("web_search_options":{})"), "web_search_options");
  expect_400(chat(R"("store":true)"), "store");
  expect_400(chat(R"("service_tier":"flex")"), "service_tier");
  expect_400(chat(R"("tool_choice":"required")"), "tool_choice");
  expect_400(chat(R"("functions":[{"name":"f"}])"), "functions");
  for (const char* name : {"guided_decoding_backend", "prompt_logprobs", "chat_template"}) {
    expect_400(chat('"' + std::string(name) + R"(":"x")"), name);
  }
  expect_400(completion(R"("prompt":"a","suffix":"b")"), "suffix");
  expect_400(completion(R"("prompt":"a","best_of":3)"), "best_of");
}

TEST_F(ServeTest, ApiA08_NeutralFieldsAreAccepted) {
  serve();
  const Answer answer =
      chat(R"("user":"u","metadata":{"a":"b"},"store":false,"service_tier":"auto","parallel_tool_calls":true,)"
           R"("safety_identifier":"s","prompt_cache_key":"k","verbosity":"low","tools":[],"tool_choice":"none",)"
           R"("response_format":{"type":"text"},"modalities":["text"],"logit_bias":null,"stop":null,"seed":null)");
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(answer.headers.count("x-ignored-fields"), 0u);
}

TEST_F(ServeTest, ApiA09_MalformedBodies) {
  serve();
  const std::string deep = std::string(10000, '[') + std::string(10000, ']');
  const std::vector<std::string> bodies = {
      "",
      "{",
      "[]",
      "null",
      "1",
      "\"x\"",
      "{\"messages\":}",
      "{} x",
      R"({"model":"test-model","model":"test-model","messages":[{"role":"user","content":"a"}]})",
      R"({"messages":[{"role":"user","content":"\ud800"}]})",
      R"({"messages":[{"role":"user","content":"\udc00\ud800"}]})",
      "{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}",
      "{\"messages\":[{\"role\":\"user\",\"content\":\"\xc0\x80\"}]}",
      "{\"messages\":[{\"role\":\"user\",\"content\":\"\xed\xa0\x80\"}]}",
      "{\"messages\":" + deep + "}",
      deep,
      "{\"temperature\":1e999,\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}",
      "{\"temperature\":NaN,\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}",
      "{\"messages\":[{\"role\":\"user\",\"content\":\"raw \x01 control\"}]}"};
  for (const std::string& body : bodies) {
    for (const char* path :
         {"/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize", "/apply-template"}) {
      const Answer answer = http_post(port(), path, body);
      EXPECT_EQ(answer.status, 400) << path << " " << body.substr(0, 80) << " -> " << answer.body;
      (void)error_of(answer);
    }
  }
  Client client(port());
  client.send("POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: text/xml\r\nContent-Length: 2\r\n\r\n{}");
  EXPECT_EQ(client.read_answer().status, 400);
  EXPECT_EQ(chat("").status, 200);
}

TEST_F(ServeTest, ApiA09_BodyOverTheLimitIs413) {
  serve();
  const std::string big(50 * 1000 * 1000, ' ');
  const Answer answer = http_post(port(), "/v1/completions", big);
  EXPECT_EQ(answer.status, 413);
  (void)error_of(answer);
  Client chunked(port());  // no length given: found while reading
  chunked.send("POST /v1/completions HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n");
  const std::string chunk(1 << 20, ' ');
  for (int i = 0; i < 40; ++i) {
    if (!chunked.send("100000\r\n" + chunk + "\r\n")) break;
  }
  EXPECT_EQ(chunked.read_answer().status, 413);
  EXPECT_EQ(http_get(port(), "/health").status, 200);
}

TEST_F(ServeTest, ApiA09_MalformedHttp) {
  serve();
  for (const char* text :
       {"GARBAGE\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "GET / HTTP/1.1\r\nno colon\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nContent-Length: abc\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"}) {
    Client client(port());
    client.send(text);
    EXPECT_EQ(client.read_answer().status, 400) << text;
  }
  Client wide(port());
  wide.send("GET / HTTP/1.1\r\nX: " + std::string(200'000, 'a') + "\r\n\r\n");
  EXPECT_EQ(wide.read_answer().status, 431);
  Client smuggler(port());
  smuggler.send(
      "POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
  EXPECT_EQ(smuggler.read_answer().status, 400);
  EXPECT_EQ(http_get(port(), "/health").status, 200);
}

TEST_F(ServeTest, ApiA10_KeepAliveAndPipelining) {
  serve();
  Client client(port());
  for (int i = 0; i < 3; ++i) {
    client.send(get_text("/health"));
    EXPECT_EQ(client.read_answer().status, 200);
  }
  const std::string body = R"({"messages":[{"role":"user","content":"x"}],"stream":true})";
  client.send(post_text("/v1/chat/completions", body) + get_text("/v1/models") +
              post_text("/tokenize", R"({"prompt":"ab"})"));
  EXPECT_EQ(sse_events(client.read_answer().body).back(), "[DONE]");
  EXPECT_EQ(parsed(client.read_answer().body)["object"], "list");
  EXPECT_EQ(parsed(client.read_answer().body)["count"], 2);
  client.send(get_text("/health", "Connection: close\r\n"));
  EXPECT_EQ(client.read_answer().headers.at("connection"), "close");
  EXPECT_FALSE(client.receive(2000));
}

TEST_F(ServeTest, ApiA10_ExpectContinue) {
  serve();
  Client client(port());
  client.send("POST /tokenize HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: 15\r\n\r\n");
  ASSERT_TRUE(client.receive_until("100 Continue\r\n\r\n"));
  client.send(R"({"prompt":"ab"})");
  EXPECT_EQ(client.read_answer().status, 200);
  Client big(port());
  big.send("POST /tokenize HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: 99999999\r\n\r\n");
  EXPECT_EQ(big.read_answer().status, 413);
  Client odd(port());
  odd.send("POST /tokenize HTTP/1.1\r\nHost: t\r\nExpect: tea\r\nContent-Length: 2\r\n\r\n{}");
  EXPECT_EQ(odd.read_answer().status, 417);
}

TEST_F(ServeTest, ApiA10_HeadAndOptions) {
  serve();
  Client client(port());
  client.send("HEAD /v1/models HTTP/1.1\r\nHost: t\r\n\r\n");
  const Answer head = client.read_answer(/*to_head=*/true);
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.headers.at("content-length"), std::to_string(http_get(port(), "/v1/models").body.size()));
  client.send(get_text("/health"));
  EXPECT_EQ(client.read_answer().status, 200);
  client.send(
      "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: t\r\nOrigin: http://a\r\n"
      "Access-Control-Request-Headers: authorization,content-type\r\n\r\n");
  const Answer options = client.read_answer();
  EXPECT_EQ(options.status, 204);
  EXPECT_EQ(options.headers.at("access-control-allow-origin"), "*");
  EXPECT_EQ(options.headers.at("access-control-allow-headers"), "authorization,content-type");
  EXPECT_NE(options.headers.at("access-control-allow-methods").find("POST"), std::string::npos);
  client.send(get_text("/health"));
  EXPECT_EQ(client.read_answer().headers.at("access-control-allow-origin"), "*");
}

TEST_F(ServeTest, ApiA10_PrefixIpv6AndUnixSocket) {
  ServerOptions options;
  options.http.prefix = "/llm";
  options.http.unix_socket = ::testing::TempDir() + "plumb_serve_test.sock";
  const std::string path = options.http.unix_socket;
  ::unlink(path.c_str());
  serve(options);
  EXPECT_EQ(http_get(port(), "/llm/v1/models").status, 200);
  EXPECT_EQ(http_get(port(), "/v1/models").status, 200);
  EXPECT_EQ(http_get(port(), "/llmx/v1/models").status, 404);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  const int local = ::socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_EQ(::connect(local, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  Client client(local);
  client.send(get_text("/health"));
  EXPECT_EQ(client.read_answer().status, 200);
  client.close();
  stop();
  EXPECT_NE(::access(path.c_str(), F_OK), 0) << "the socket file is taken away";
  HttpServer six({.host = "::1", .port = 0},
                 {.on_request = [](std::shared_ptr<Exchange> e) { e->respond({.body = "{}"}); },
                  .make_error = [](int status, std::string_view) { return HttpResponse{.status = status}; }});
  const Status started = six.start();
  if (!started) GTEST_SKIP() << "no IPv6 here: " << started.error().to_string();
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(six.port());
  v6.sin6_addr = in6addr_loopback;
  const int socket6 = ::socket(AF_INET6, SOCK_STREAM, 0);
  ASSERT_EQ(::connect(socket6, reinterpret_cast<sockaddr*>(&v6), sizeof v6), 0);
  Client over6(socket6);
  over6.send(get_text("/"));
  EXPECT_EQ(over6.read_answer().status, 200);
}

TEST_F(ServeTest, ApiA10_TakenPortIsAnErrorThatNamesIt) {
  serve();
  HttpOptions options;
  options.port = port();
  HttpServer second(options, {});
  const Status status = second.start();
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, Code::Environment);
  EXPECT_NE(status.error().to_string().find(std::to_string(port())), std::string::npos);
}

TEST_F(ServeTest, ApiA11_SilentStreamsSendComments) {
  ServerOptions options;
  options.http.sse_keepalive_ms = 50;
  serve(options);
  engine_->set_paused(true);
  Client client(port());
  client.send(post_text("/v1/chat/completions", R"({"messages":[{"role":"user","content":"x"}],"stream":true})"));
  ASSERT_TRUE(client.receive_until(": keep-alive\n\n\r\n"));
  engine_->set_paused(false);
  const Answer answer = client.read_answer();
  EXPECT_EQ(gather_chat(answer)[0].reasoning, "Hello");
}

TEST_F(ServeTest, SlowHeadsAndIdleConnectionsAreDropped) {
  ServerOptions options;
  options.http.head_timeout_ms = 100;
  options.http.body_timeout_ms = 100;
  options.http.idle_timeout_ms = 150;
  serve(options);
  Client idle(port());
  EXPECT_FALSE(idle.receive(5000));
  Client slow(port());
  slow.send("GET /health HT");
  EXPECT_EQ(slow.read_answer().status, 408);
  Client body(port());
  body.send("POST /tokenize HTTP/1.1\r\nHost: t\r\nContent-Length: 100\r\n\r\n{");
  const Answer answer = body.read_answer();
  EXPECT_EQ(answer.status, 408);
  EXPECT_EQ(answer.headers.at("x-should-retry"), "false");
}

TEST_F(ServeTest, Http10ClientsGetPlainStreams) {
  serve();
  Client client(port());
  const std::string body = R"({"messages":[{"role":"user","content":"x"}],"stream":true})";
  client.send("POST /v1/chat/completions HTTP/1.0\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
              body);
  const Answer answer = client.read_answer();
  EXPECT_EQ(answer.headers.count("transfer-encoding"), 0u);
  EXPECT_EQ(gather_chat(answer)[0].reasoning, "Hello");
}

TEST_F(ServeTest, ConnectionsOverTheLimitGet503) {
  ServerOptions options;
  options.http.max_connections = 2;
  serve(options);
  Client a(port()), b(port());
  a.send(get_text("/health"));
  b.send(get_text("/health"));
  EXPECT_EQ(a.read_answer().status, 200);
  EXPECT_EQ(b.read_answer().status, 200);
  Client c(port());
  EXPECT_EQ(c.read_answer().status, 503);
}

}  // namespace
}  // namespace plumb
