#include "guard/check_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace plumb {
namespace {

// Of each layer the op that came closest to its bound, or went furthest beyond.
std::map<int, const SiteResult*> worst_by_layer(const CheckReport& report) {
  std::map<int, const SiteResult*> worst;
  for (const SiteResult& site : report.sites) {
    const auto [at, first] = worst.try_emplace(site.layer, &site);
    if (!first && site.worst > at->second->worst) at->second = &site;
  }
  return worst;
}

std::string layer_name(int layer) { return layer < 0 ? "outside" : std::to_string(layer); }

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '&')
      out += "&amp;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  }
  return out;
}

std::string row(std::initializer_list<std::string> cells, const char* style = "") {
  std::string out = fmt::format("<tr{}>", style);
  for (const std::string& cell : cells) out += "<td>" + escaped(cell) + "</td>";
  return out + "</tr>\n";
}

std::string table(std::string_view heading, std::initializer_list<const char*> columns, const std::string& rows) {
  if (rows.empty()) return {};
  std::string out = fmt::format("<h2>{}</h2>\n<table><tr>", heading);
  for (const char* column : columns) out += fmt::format("<th>{}</th>", column);
  return out + "</tr>\n" + rows + "</table>\n";
}

const char* style_of(bool good) { return good ? "" : " class=\"bad\""; }

// Relative drift of each layer's output on a logarithmic axis, and above it the share of its bound that the layer's
// worst op used.
std::string plot(const CheckReport& report, const std::optional<LayerDrift>& drift) {
  constexpr double kWidth = 720, kHeight = 240, kLeft = 56, kBottom = 28, kTop = 12;
  constexpr double kLow = -8, kHigh = 2;  // decades shown
  const std::map<int, const SiteResult*> worst = worst_by_layer(report);
  const int layers =
      std::max(worst.empty() ? 0 : worst.rbegin()->first + 1, drift ? static_cast<int>(drift->relative.size()) : 0);
  if (layers == 0) return {};
  const auto x = [&](double layer) { return kLeft + (layer + 0.5) * (kWidth - kLeft) / layers; };
  const auto y = [&](double value) {
    const double decade = std::isfinite(value) ? std::log10(std::max(value, 1e-300)) : kHigh;
    const double share = (std::clamp(decade, kLow, kHigh) - kLow) / (kHigh - kLow);
    return kTop + (1 - share) * (kHeight - kTop - kBottom);
  };
  std::string out =
      fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"drift by layer\">\n", kWidth, kHeight);
  for (int decade = static_cast<int>(kLow); decade <= static_cast<int>(kHigh); decade += 2) {
    const double at = y(std::pow(10.0, decade));
    out += fmt::format(
        "<line x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" class=\"grid\"/>"
        "<text x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">1e{5}</text>\n",
        kLeft, kWidth, at, kLeft - 6, at + 4, decade);
  }
  out +=
      fmt::format("<line x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" class=\"bound\"/>\n", kLeft, kWidth, y(1));
  for (const auto& [layer, site] : worst) {
    if (layer < 0) continue;
    out += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" class=\"{}\"><title>layer {}: "
        "{} used {:.3g} of its bound</title></rect>\n",
        x(layer) - 0.3 * (kWidth - kLeft) / layers, y(site->worst), 0.6 * (kWidth - kLeft) / layers,
        kHeight - kBottom - y(site->worst), site->outside > 0 ? "over" : "within", layer, escaped(site->place),
        site->worst);
  }
  std::string points;
  for (size_t i = 0; drift && i < drift->relative.size(); ++i)
    points += fmt::format("{:.1f},{:.1f} ", x(static_cast<double>(i)), y(drift->relative[i]));
  if (!points.empty()) out += fmt::format("<polyline points=\"{}\" class=\"drift\"/>\n", points);
  for (int layer = 0; layer < layers; layer += std::max(1, layers / 16))
    out += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", x(layer), kHeight - 8, layer);
  return out +
         "</svg>\n<p>Bars: share of its error bound that each layer's worst op used; red is beyond the bound (the "
         "dashed line at 1)." +
         (points.empty() ? "" : " Line: how far the layer's output is from the reference backend's, errors piled up.") +
         "</p>\n";
}

constexpr const char* kStyle =
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1a1a1a;background:"
    "#fff}table{border-collapse:collapse;width:100%;margin:.5rem 0 1.5rem}th,td{text-align:left;padding:.25rem .6rem;"
    "border-bottom:1px solid #ddd;vertical-align:top;overflow-wrap:anywhere}th{background:#f4f4f4}.bad td{background:"
    "#fdecea}.verdict{padding:.8rem 1rem;border-left:6px solid #2e7d32;background:#f1f8f1}.verdict.bad{border-color:"
    "#c62828;background:#fdecea}code{background:#f4f4f4;padding:.1rem .3rem}svg{width:100%;height:auto}svg text{font:"
    "11px system-ui;fill:#555}.grid{stroke:#e3e3e3}.bound{stroke:#c62828;stroke-dasharray:5 4}.within{fill:#9db8d6}"
    ".over{fill:#d9534f}.drift{fill:none;stroke:#1b5e20;stroke-width:2}";

}  // namespace

std::string check_text(const CheckPage& page) {
  const CheckReport& report = page.report;
  std::string out = fmt::format("check of {}, plan {}: {} launches judged, {} values compared\n", page.model,
                                report.plan, report.launches, report.elements);
  out += fmt::format("{:<8} {:>10} {:>12}  {}\n", "layer", "of bound", "drift", "closest to its bound");
  for (const auto& [layer, site] : worst_by_layer(report)) {
    std::string drift = "-";
    if (page.drift && layer >= 0 && layer < static_cast<int>(page.drift->relative.size()))
      drift = fmt::format("{:.3g}", page.drift->relative[static_cast<size_t>(layer)]);
    out += fmt::format("{:<8} {:>10.3g} {:>12}  {} ({})\n", layer_name(layer), site->worst, drift, site->place,
                       site->kernel);
  }
  for (const PathResult& path : report.paths)
    out += fmt::format("{}: {:.3g} of {:.3g} allowed{}\n", path.name, path.figure, path.bound,
                       path.passes() ? "" : "  FAILED");
  for (const CacheTrial& cache : report.caches)
    out += fmt::format("with --kv {}: {}{}{}\n", cache.kv, cache.verdict,
                       cache.divergence.empty() ? "" : "; logits against the planned cache's: ", cache.divergence);
  if (page.drift) out += fmt::format("logits against the reference: {}\n", page.drift->logits.to_string());
  for (const OpFinding& finding : report.findings) out += "out of bound: " + finding.to_string() + "\n";
  for (const KernelTrial& trial : report.trials)
    out += fmt::format("{} {}{}: {}\n", trial.passes ? "passes" : "fails ", trial.kernel,
                       trial.planned ? " (planned)" : "", trial.figure);
  return out + (report.passes() ? "passed: " : "FAILED: ") + report.verdict() + "\n";
}

std::string check_html(const CheckPage& page) {
  const CheckReport& report = page.report;
  std::string trials, paths, caches, findings, sites, flags;
  for (const KernelTrial& t : report.trials)
    trials += row(
        {t.kernel + (t.planned ? " (planned)" : ""), t.passes ? "passes" : "fails", t.figure, t.planned ? "" : t.flag},
        style_of(t.passes));
  for (const PathResult& p : report.paths)
    paths +=
        row({p.name, fmt::format("{:.3g}", p.figure), fmt::format("{:.3g}", p.bound), p.passes() ? "passes" : "fails"},
            style_of(p.passes()));
  for (const CacheTrial& c : report.caches) caches += row({c.kv, c.verdict, c.divergence}, style_of(c.passes));
  for (const OpFinding& f : report.findings)
    findings += row(
        {f.place, f.op, f.kernel, f.phase, f.position < 0 ? "" : std::to_string(f.position), f.judgement.to_string()},
        style_of(false));
  for (const SiteResult& s : report.sites)
    sites += row({s.place, s.op, s.kernel, fmt::format("{:.3g}", s.worst), std::to_string(s.outside),
                  std::to_string(s.compared)},
                 style_of(s.outside == 0));
  for (const FlagLine& f : page.plan.flags) flags += row({f.name, f.asked, f.effective, f.source});
  std::string advice;
  for (const std::string& flag : report.flags()) advice += "<li><code>" + escaped(flag) + "</code></li>\n";
  if (!advice.empty()) advice = "<p>Flags that select a kernel which passes:</p><ul>\n" + advice + "</ul>\n";
  std::string out = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>plumb check: "
      "{0}</title><style>{1}</style>"
      "</head><body>\n<h1>plumb check: {0}</h1>\n<p>plan <code>{2}</code>, build <code>{3}</code>; {4} launches "
      "judged, "
      "{5} values compared with the reference on the same inputs</p>\n<p class=\"verdict{6}\">{7}: {8}</p>\n",
      escaped(page.model), kStyle, report.plan, escaped(page.build), report.launches, report.elements,
      report.passes() ? "" : " bad", report.passes() ? "Passed" : "Failed", escaped(report.verdict()));
  out += advice + "<h2>Drift by layer</h2>\n" + plot(report, page.drift);
  if (page.drift)
    out += "<p>Logits against the reference backend: " + escaped(page.drift->logits.to_string()) + "</p>\n";
  out += table("Kernels tried on the op that failed", {"kernel", "verdict", "figure", "selected by"}, trials);
  out += table("Out of bound", {"place", "op", "kernel", "phase", "position", "what"}, findings);
  out += table("Paths to the same logits", {"paths", "largest difference", "allowed", "verdict"}, paths);
  out += table("Other types of KV cache", {"type", "verdict", "logits against the planned cache's"}, caches);
  out += table("Every op", {"place", "op", "kernel", "of its bound", "outside", "compared"}, sites);
  out += table("Flags in effect", {"flag", "asked", "effective", "source"}, flags);
  return out + "</body></html>\n";
}

}  // namespace plumb
