// A real server over loopback: byte tokenizer, scripted engine.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "serve/fake_engine.h"
#include "serve/server.h"
#include "serve/test_client.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace plumb {

// Ids of the test vocabulary: 0-255 are the bytes.
constexpr int32_t kEndOfText = 256, kUser = 257, kAssistant = 258, kThink = 259, kEndThink = 260, kSystem = 261,
                  kVocab = 300;

std::string byte_tokenizer_json();
extern const char kTestTemplate[];

// Tokens that spell `text` byte by byte; <think> and </think> become their own tokens.
std::vector<TokenEvent> spell(std::string_view text);
// The same, ended by the <|user|> token.
Script says(std::string_view text);
Script says_until(std::string_view text, FinishReason reason, int32_t stop_id = -1);

class ServeTest : public ::testing::Test {
 protected:
  ServeTest();
  ~ServeTest() override;

  // With defaults: ready, "test-model", every request answered by script_.
  void serve(ServerOptions options = {});
  void stop() { server_.reset(); }

  Answer chat(const std::string& extra, const std::string& messages = R"([{"role":"user","content":"hi"}])") const;
  Answer completion(const std::string& extra) const;
  // The status and error of a request that has `extra` beside the required fields.
  nlohmann::json error_of(const Answer& answer) const;
  void expect_400(const Answer& answer, const std::string& param) const;
  uint16_t port() const { return server_->port(); }

  Script script_ = says("Hello");
  std::unique_ptr<Tokenizer> tokenizer_{};
  std::unique_ptr<ChatTemplate> template_{};
  std::unique_ptr<FakeEngine> engine_{};  // outlives the server
  std::unique_ptr<Server> server_{};
  ModelServices services_{};
};

nlohmann::json parsed(std::string_view text);
// Sum of all deltas of a streamed chat, choice by choice, with what must hold for every chunk checked.
struct Streamed {
  std::string role{}, content{}, reasoning{}, finish{};
  nlohmann::json logprobs = nlohmann::json::array();
  int finishes = 0, chunks = 0;
  nlohmann::json stop_reason{};
};
std::vector<Streamed> gather_chat(const Answer& answer, int choices = 1);

}  // namespace plumb
