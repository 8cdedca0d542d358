#include "cli/codes.h"

#include <algorithm>

namespace plumb {
namespace {

constexpr std::string_view kKind = "Kinds of error of a command, and exit codes";
constexpr std::string_view kAnswer = "Codes in answers of the server";
constexpr std::string_view kFault = "Numerical faults";
constexpr std::string_view kCheck = "Checks before ready, in the receipt";
constexpr std::string_view kRefusal = "Reasons why a kernel was refused, in the plan";

constexpr CodeText kCodes[] = {
    {"usage", kKind, "exit code 1: an unknown flag or a value that is not one",
     "the message names the flag and the values that work; `plumb COMMAND --help` lists all"},
    {"not_found", kKind, "exit code 1: a file, folder, tensor or key is missing",
     "check the path; a model is a folder with config.json, or org/name in the Hugging Face cache (`HF_HOME`)"},
    {"environment", kKind, "exit code 1: port taken, out of memory, disk full, no permission",
     "free what the message names, or ask for less: a smaller `--context` or `--pages`, another `--port`"},
    {"unsupported", kKind, "exit code 2: the wish was understood and can't be honoured; nothing was started",
     "use one of the values after `works instead`; `plumb plan MODEL --json` has every candidate and its refusal"},
    {"verification", kKind,
     "exit code 3: a check of the numbers failed; the message names check, layer, op, kernel, figure and bound",
     "run `plumb check MODEL` with the same options: it names the kernels that pass and the flags that select them; if "
     "none passes, the "
     "checkpoint or the machine is at fault: compare with `--backend reference`"},
    {"corrupt", kKind, "exit code 4: the checkpoint is broken or contradicts itself",
     "fetch the named file again and compare its size and checksum with the source; often a download was cut short"},
    {"peer", kKind, "exit code 5: a rank or a device was lost", "look at the first rank that ended; restart all ranks"},
    {"cancelled", kKind, "exit code 1: whoever asked went away", "nothing; ask again"},
    {"internal", kKind, "exit code 70: a bug in plumb", "please report the message"},

    {"invalid_value", kAnswer, "400: a field is out of its range or of the wrong form", "`param` names the field"},
    {"invalid_type", kAnswer, "400: a field has another JSON type than it should", "`param` names the field"},
    {"invalid_json", kAnswer, "400: the body is no JSON, has a key twice, or nests too deep", "send valid JSON"},
    {"missing_required_parameter", kAnswer, "400: a field that must be there is not", "`param` names the field"},
    {"unsupported_parameter", kAnswer, "400: the field is known and what it asks for is not offered",
     "leave it out; a field is never ignored silently"},
    {"unknown_parameter", kAnswer, "400: nobody knows this field, and the server was started with --strict-fields",
     "correct its name, or start without that flag"},
    {"unsupported_content", kAnswer, "400: a message has content of a kind the model can't read", "send text"},
    {"unsupported_content_type", kAnswer, "415: the request's content type is not JSON",
     "send `Content-Type: application/json`"},
    {"context_length_exceeded", kAnswer, "400: prompt and answer are longer than the context",
     "a shorter prompt, a smaller `max_tokens`, or a server with a larger `--context`"},
    {"template_error", kAnswer, "400: the chat template refused the conversation", "the message names its line"},
    {"no_chat_template", kAnswer, "400: the checkpoint has no chat template", "use /v1/completions"},
    {"tokenizer_error", kAnswer, "the text could not be tokenised", "the message says where"},
    {"invalid_api_key", kAnswer, "401: the key is missing or wrong", "send `Authorization: Bearer KEY`"},
    {"admin_key_required", kAnswer, "403: this path is for the administrator", "use the key of `--admin-key`"},
    {"model_not_found", kAnswer, "404: no model of that name is served", "GET /v1/models lists the names"},
    {"unknown_url", kAnswer, "404: there is nothing at this path", "see docs/api.md for what there is"},
    {"method_not_allowed", kAnswer, "405: the path is there for another method", "the `Allow` header names it"},
    {"deadline_exceeded", kAnswer, "the request took longer than its deadline", "ask for fewer tokens or more time"},
    {"queue_full", kAnswer, "429: as many requests wait as may", "try again after `Retry-After`; or a larger --queue"},
    {"key_limit", kAnswer, "429: the key runs as many generations as its line in --api-key-file allows",
     "try again after `Retry-After`"},
    {"unavailable", kAnswer, "503: the server is loading, verifying or draining", "try again after `Retry-After`"},
    {"aborted", kAnswer, "409 or 503: the request was ended by /abort_request, or because the server stops",
     "ask again if it is still wanted"},
    {"request_not_found", kAnswer, "404: /abort_request names no request that runs", "it may have ended already"},
    {"unhealthy", kAnswer, "503: /health_generate drew no token in time", "look at the log and at /health"},
    {"internal_error", kAnswer, "500: a bug in plumb", "please report the message"},

    {"numerical_fault", kFault, "500: this request's numbers went bad; the other requests went on",
     "`code` names the kind; on the server's machine `plumb replay INCIDENT_ID MODEL` repeats the op that failed"},
    {"nan_detected", kFault, "a value that is not a number appeared; the record names layer, op, tensor and row",
     "`plumb replay INCIDENT_ID MODEL`, or `plumb check MODEL`: both name the kernels that compute this op rightly"},
    {"inf_detected", kFault, "a value became infinite: an overflow, or a scale that was misread",
     "`plumb replay INCIDENT_ID MODEL`, or `plumb check MODEL`: both name the kernels that compute this op rightly"},
    {"drift_detected", kFault, "an op's result was finite and further from the reference than its contract allows",
     "`plumb replay INCIDENT_ID MODEL`, or `plumb check MODEL`: both name the kernels that compute this op rightly"},

    {"weights", kCheck, "a scale or value of the checkpoint is not finite, not above 0, or out of its format's range",
     "fetch the named file again; `plumb inspect MODEL` shows the tensor"},
    {"layer_replay", kCheck, "an op of a layer is further from the reference, on the same inputs, than its bound",
     "the report names kernels that pass: `--kernel PLACE=NAME`; `plumb check MODEL` looks at every op"},
    {"decode_vs_prefill", kCheck, "tokens made step by step have other logits than the same tokens in one prompt",
     "`plumb check MODEL` names the op; until then another kernel for the op that decodes"},
    {"long_context", kCheck,
     "beyond `index_topk` tokens selection or attention is wrong, or the two paths differ there",
     "`plumb check MODEL` with a prompt longer than `index_topk`"},
    {"batch_buckets", kCheck, "a row's logits depend on the batch it is in, or padding reaches it",
     "`plumb check MODEL` decodes batches of every size and names the op"},
    {"cache_paths", kCheck, "a prefix-cache hit, a resumed sequence or a chunked prompt gives other logits",
     "`--no-prefix-cache` tells whether the cache is at fault; `plumb check MODEL` whether an op is"},
    {"speculation", kCheck, "greedy text with drafts differs from the text without",
     "`--draft-tokens 0` serves without"},
    {"sampling", kCheck, "probabilities told are not those drawn from, a seed does not repeat, or all logits are equal",
     "`plumb check MODEL` tries the sampler's other kernels"},
    {"ranks", kCheck, "values that every rank must have differ between ranks",
     "the message names rank, machine, layer, op and kernel; fewer ranks (`--tp`) without that machine or GPU"},
    {"golden", kCheck, "logits are further from the golden file's than the KV format explains",
     "`plumb kld` against the checkpoint that the golden file was made of; make it anew if the model changed"},
    {"text", kCheck, "a prompt of verify.jsonl was not answered as expected", "the report has the answer given"},

    {"op", kRefusal, "the kernel computes another operation", "pin it where its op is: `--kernel PLACE=NAME`"},
    {"arch", kRefusal, "the machine lacks the instructions the kernel was built for",
     "`plumb plan MODEL` shows what the machine has"},
    {"weight.element", kRefusal, "the weight's elements are of another type", "a kernel or checkpoint of that format"},
    {"weight.block", kRefusal, "the weight's scales stand for blocks of another shape", "a kernel for this block"},
    {"weight.scale", kRefusal,
     "the weight's scales are of another type: f32 scales are never read as ue8m0, nor the reverse",
     "a kernel that reads this scale type; converting f32 to ue8m0 scales means quantising again: `plumb quantize`"},
    {"reads", kRefusal, "the kernel rounds its input more than the plan allows", "another `--activations`"},
    {"kv", kRefusal, "the kernel reads another KV-cache format", "another `--kv`, or a kernel for this one"},
    {"index_key", kRefusal, "the kernel reads another index-key format", "another `--index-keys`"},
    {"limits", kRefusal, "a shape is beyond what the kernel was built for (limits.n_multiple, limits.m_max ...)",
     "another kernel; the refusal has both numbers"},
    {"round_bf16", kRefusal, "the kernel can't round its results to bf16", "`--activations auto`"},
    {"norm_two_roundings", kRefusal, "the kernel rounds once in RMSNorm", "`--numeric-profile engine`"},
    {"index_hadamard", kRefusal, "the kernel does not rotate index keys", "`--numeric-profile transformers`"},
    {"deterministic", kRefusal, "the kernel's bits may differ from run to run",
     "another kernel, or no --deterministic"},
    {"batch_invariant", kRefusal, "the kernel's bits depend on the batch", "another kernel, or no --deterministic"},
};

}  // namespace

std::span<const CodeText> all_codes() { return kCodes; }

const CodeText* find_code(std::string_view code) {
  if (code.starts_with("limits.")) code = "limits";
  const auto* found =
      std::find_if(std::begin(kCodes), std::end(kCodes), [&](const CodeText& c) { return c.code == code; });
  return found == std::end(kCodes) ? nullptr : found;
}

std::string codes_markdown() {
  std::string text;
  std::string_view group;
  for (const CodeText& c : kCodes) {
    if (c.group != group) {
      group = c.group;
      text += (text.empty() ? "**" : "\n**") + std::string(group) +
              "**\n\n| code | meaning | what to do |\n|---|---|---|\n";
    }
    text += "| `" + std::string(c.code) + "` | " + std::string(c.means) + " | " + std::string(c.fix) + " |\n";
  }
  return text;
}

}  // namespace plumb
