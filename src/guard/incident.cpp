#include "guard/incident.h"

#include <nlohmann/json.hpp>
#include <sstream>

namespace plumb {

std::string_view to_string(FaultKind kind) {
  return kind == FaultKind::Nan ? "nan" : kind == FaultKind::Inf ? "inf" : "drift";
}

std::string Incident::to_string() const {
  std::ostringstream text;
  text << site << " (" << op << ", " << kernel << ") ";
  if (kind == FaultKind::Drift)
    text << "drift: " << have << " in place of " << want << ", allowed are " << bound << ", in ";
  else
    text << "wrote " << (kind == FaultKind::Nan ? "NaN" : "Inf") << " to ";
  text << tensor;
  if (column >= 0) text << "[" << column << "]";
  text << ", step " << step << (pass > 0 ? ", draft pass" : "") << ", row " << row << ", position " << position;
  if (!repeated) text << "; gone when the step was run again, so what was written is not known";
  return text.str();
}

nlohmann::ordered_json to_json(const Incident& i) {
  nlohmann::ordered_json json = {
      {"incident_id", i.id}, {"kind", to_string(i.kind)}, {"step", i.step},        {"pass", i.pass},
      {"rank", i.rank},      {"layer", i.layer},          {"site", i.site},        {"op", i.op},
      {"kernel", i.kernel},  {"tensor", i.tensor},        {"row", i.row},          {"position", i.position},
      {"column", i.column},  {"captured", i.captured},    {"repeated", i.repeated}};
  if (i.kind == FaultKind::Drift) {
    json["have"] = i.have;
    json["want"] = i.want;
    json["bound"] = i.bound;
  }
  return json;
}

}  // namespace plumb
