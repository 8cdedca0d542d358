// The web page at / and the files it loads. It asks the API like any other client; nothing here is secret.
#include "base/hash.h"
#include "serve/handlers.h"
#include "serve/web_files.h"

namespace plumb {

namespace {

// Scripts, styles and connections of this origin alone; no inline code, no frames, no forms, no text made into markup.
constexpr std::string_view kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

std::string_view type_of(std::string_view name) {
  if (name.ends_with(".html")) return "text/html; charset=utf-8";
  if (name.ends_with(".css")) return "text/css; charset=utf-8";
  if (name.ends_with(".js")) return "text/javascript; charset=utf-8";
  return "image/svg+xml";
}

}  // namespace

void handle_web(ServeContext& context, const std::shared_ptr<Exchange>& exchange) {
  const std::string& path = exchange->request().path;
  const std::string_view name = path == "/" ? "index.html" : std::string_view(path).substr(kWebPrefix.size());
  for (const EmbeddedFile& file : embedded_files()) {
    if (file.name != name || !context.options.web) continue;
    const std::string tag = '"' + Hash64().add(file.bytes).hex() + '"';
    const bool known = exchange->request().header("if-none-match") == tag;
    HttpResponse response{.status = known ? 304 : 200, .content_type = std::string(type_of(name))};
    response.headers = {{"Content-Security-Policy", std::string(kPolicy)},
                        {"X-Content-Type-Options", "nosniff"},
                        {"Referrer-Policy", "no-referrer"},
                        {"Cross-Origin-Opener-Policy", "same-origin"},
                        {"Cache-Control", "no-cache"},
                        {"ETag", tag}};
    if (!known) response.body = file.bytes;
    return exchange->respond(std::move(response));
  }
  const std::string message = context.options.web ? path.substr(0, 200) + " is no file of the web page"
                                                  : "the web page is switched off (--no-web)";
  exchange->respond(error_response(not_found(message, "", "unknown_url")));
}

}  // namespace plumb
