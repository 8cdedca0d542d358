// Structured output at the HTTP edge: which forms are read, what is refused and how the refusal names its place. That
// the engine keeps to a grammar is tested in tests/engine and tests/e2e.
#include "grammar/grammar.h"
#include "serve/test_server.h"

namespace plumb {
namespace {

class ConstraintTest : public ServeTest {
 protected:
  // Whether the grammar that the last request gave to the engine takes the text.
  bool takes(const std::string& text) const {
    const std::vector<GenerateRequest> requests = engine_->requests();
    return !requests.empty() && requests.back().grammar && requests.back().grammar->matches(text);
  }
  static std::string plain(const std::string& extra) {
    return extra + R"(,"chat_template_kwargs":{"enable_thinking":false})";
  }
};

const char kSchema[] = R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]})";

TEST_F(ConstraintTest, ApiJ54_EveryFormIsRead) {
  serve();
  const std::string schema = kSchema;
  const std::vector<std::string> json_forms = {
      R"("response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":)" + schema + "}}",
      R"("guided_json":)" + schema, R"("structured_outputs":{"json":)" + schema + "}",
      R"("json_schema":)" + nlohmann::json(schema).dump()};
  for (const std::string& form : json_forms) {
    EXPECT_EQ(chat(plain(form)).status, 200) << form;
    EXPECT_TRUE(takes(R"({"a": 1})")) << form;
    EXPECT_FALSE(takes(R"({"b": 1})")) << form;
  }
  for (const char* form : {R"("guided_regex":"a+")", R"("regex":"a+")", R"("structured_outputs":{"regex":"a+"})",
                           R"("guided_choice":["a","aa"])", R"("structured_outputs":{"choice":["a","aa"]})",
                           R"("ebnf":"root ::= \"a\"+")", R"("guided_grammar":"root ::= \"a\"+")",
                           R"("grammar":"root ::= \"a\"+")", R"("structured_outputs":{"grammar":"root ::= \"a\"+"})"}) {
    EXPECT_EQ(completion(R"("prompt":"x",)" + std::string(form)).status, 200) << form;
    EXPECT_TRUE(takes("aa")) << form;
    EXPECT_FALSE(takes("b")) << form;
  }
  EXPECT_EQ(chat(plain(R"("response_format":{"type":"json_object"})")).status, 200);
  EXPECT_TRUE(takes(R"({"x":[]})"));
  EXPECT_EQ(chat(plain(R"("structured_outputs":{"json_object":true})")).status, 200);
  EXPECT_EQ(chat(plain(R"("response_format":{"type":"text"})")).status, 200);
  EXPECT_EQ(engine_->requests().back().grammar, nullptr);
}

TEST_F(ConstraintTest, ApiJ54_RefusalsNameThePath) {
  serve();
  const std::string head = R"("response_format":{"type":"json_schema","json_schema":)";
  expect_400(chat(R"("response_format":{"type":"json_schema"})"), "response_format.json_schema");
  expect_400(chat(head + R"({"name":"n"}})"), "response_format.json_schema.schema");
  expect_400(chat(head + R"({"name":"n","schema":3}})"), "response_format.json_schema.schema");
  expect_400(chat(head + R"({"name":"n","schema":{"type":"object","properties":{"a":{"not":{}}}}}})"),
             "response_format.json_schema.schema.properties.a.not");
  expect_400(chat(head + R"({"name":"n","schema":{"enum":[]}}})"), "response_format.json_schema.schema");
  expect_400(chat(R"("response_format":{"type":"xml"})"), "response_format.type");
  expect_400(chat(R"("response_format":"json")"), "response_format");
  expect_400(chat(R"("guided_json":{"type":"wibble"})"), "guided_json.type");
  expect_400(chat(R"("guided_json":"{")"), "guided_json");
  expect_400(chat(R"x("guided_regex":"a(?=b)")x"), "guided_regex");
  expect_400(chat(R"("guided_regex":3)"), "guided_regex");
  expect_400(chat(R"("guided_choice":[])"), "guided_choice");
  expect_400(chat(R"("guided_choice":[1])"), "guided_choice");
  expect_400(chat(R"("ebnf":"root ::= root")"), "ebnf");
  expect_400(chat(R"("structured_outputs":{"wibble":1})"), "structured_outputs.wibble");
  expect_400(chat(R"("regex":"a","ebnf":"root ::= \"a\"")"), "ebnf");
  EXPECT_TRUE(engine_->requests().empty());
}

TEST_F(ConstraintTest, ApiJ55_TheConstraintBeginsAfterReasoning) {
  serve();
  ASSERT_EQ(chat(R"("guided_regex":"a+")").status, 200);
  EXPECT_TRUE(takes("let me see</think>aa"));
  EXPECT_FALSE(takes("aa"));
  ASSERT_EQ(chat(plain(R"("guided_regex":"a+")")).status, 200);
  EXPECT_TRUE(takes("aa"));
  EXPECT_FALSE(takes("see</think>aa"));
}

TEST_F(ConstraintTest, ASchemaIsCompiledOnce) {
  serve();
  ASSERT_EQ(chat(R"("guided_regex":"a+","n":2)").status, 200);
  ASSERT_EQ(chat(R"("regex":"a+")").status, 200);
  ASSERT_EQ(chat(R"("regex":"a")").status, 200);
  const std::vector<GenerateRequest> requests = engine_->requests();
  ASSERT_EQ(requests.size(), 4u);
  EXPECT_EQ(requests[0].grammar, requests[1].grammar);
  EXPECT_EQ(requests[0].grammar, requests[2].grammar);
  EXPECT_NE(requests[0].grammar, requests[3].grammar);
}

}  // namespace
}  // namespace plumb
