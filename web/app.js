// Tabs, keys, theme, settings, and the light that says how the server is.
import { $ } from "./dom.js";
import { get, health, setKeys } from "./api.js";
import { newChat, startChat, stop } from "./chat.js";
import { rebuildServer, showServer } from "./server.js";
import { saveSettings, settings } from "./store.js";

// ---- theme: the system's until chosen ----

const dark = matchMedia("(prefers-color-scheme: dark)");
function applyTheme() {
  if (settings.theme) document.documentElement.dataset.theme = settings.theme;
}
$("theme").addEventListener("click", () => {
  const now = settings.theme ?? (dark.matches ? "dark" : "light");
  settings.theme = now === "dark" ? "light" : "dark";
  saveSettings();
  applyTheme();
});
applyTheme();

// ---- tabs ----

const tabs = ["chat", "server"];
function show(name, focus = false) {
  for (const tab of tabs) {
    const chosen = tab === name;
    $(`tab-${tab}`).setAttribute("aria-selected", String(chosen));
    $(`tab-${tab}`).tabIndex = chosen ? 0 : -1;
    $(`view-${tab}`).hidden = !chosen;
  }
  document.body.classList.remove("side-open");
  document.body.dataset.view = name;
  if (focus) $(`tab-${name}`).focus();
  if (name === "server") history.replaceState(null, "", "#server");
  else history.replaceState(null, "", location.pathname + location.search);
  showServer(name === "server");
}
for (const tab of tabs) {
  $(`tab-${tab}`).addEventListener("click", () => show(tab));
  $(`tab-${tab}`).addEventListener("keydown", (event) => {
    if (event.key === "ArrowRight" || event.key === "ArrowLeft") show(tab === "chat" ? "server" : "chat", true);
  });
}

// ---- conversations on narrow screens ----

$("menu").addEventListener("click", () => {
  const open = document.body.classList.toggle("side-open");
  $("menu").setAttribute("aria-expanded", String(open));
});

// ---- settings ----

const fields = ["system", "temperature", "top_p", "max_tokens", "seed"];
$("open-settings").addEventListener("click", () => {
  for (const name of fields) $(`s-${name}`).value = settings[name] ?? "";
  $("s-key").value = sessionStorage.getItem("plumb.key") ?? "";
  $("s-admin").value = sessionStorage.getItem("plumb.admin") ?? "";
  $("settings").showModal();
});
$("settings").addEventListener("close", () => {
  for (const name of fields) settings[name] = $(`s-${name}`).value;
  saveSettings();
  setKeys($("s-key").value.trim(), $("s-admin").value.trim());
  rebuildServer();
  if (document.body.dataset.view === "server") showServer(true);
  watch();
});
$("settings").addEventListener("click", (event) => { if (event.target === $("settings")) $("settings").close(); });

// ---- keys ----

addEventListener("keydown", (event) => {
  if ($("settings").open) return;
  const writing = /^(INPUT|TEXTAREA)$/.test(document.activeElement?.tagName ?? "");
  if (event.key === "Escape") {
    stop();
    document.body.classList.remove("side-open");
  } else if (event.altKey && event.code === "KeyN") {
    event.preventDefault();
    show("chat");
    newChat();
  } else if (event.altKey && (event.code === "Digit1" || event.code === "Digit2")) {
    event.preventDefault();
    show(tabs[event.code === "Digit1" ? 0 : 1]);
  } else if (event.key === "/" && !writing) {
    event.preventDefault();
    show("chat");
    $("input").focus();
  }
});

// ---- the server's state ----

let named = false;
async function watch() {
  const dot = $("state");
  let state = { state: "unreachable" };
  try {
    state = await health();
    if (!named && state.ok) {
      const models = await (await get("v1/models")).json();
      $("model").textContent = $("model").title = models.data[0].id;
      named = true;
    }
  } catch { /* the light says it */ }
  const text = state.ok && state.verification !== "verified" ? `${state.state}, ${state.verification ?? "unverified"}` : state.state;
  dot.className = `dot ${state.ok ? (state.verification === "verified" ? "good" : "warn") : "bad"}`;
  dot.setAttribute("aria-label", `Server: ${text}`);
  dot.title = text;
}
watch();
setInterval(() => document.hidden || watch(), 10000);

startChat();
show(location.hash === "#server" ? "server" : "chat");
