// The chat: messages, streaming, editing, probabilities.
import { $, h, button, copy, icon, toast } from "./dom.js";
import { stream } from "./api.js";
import { markdown } from "./markdown.js";
import * as store from "./store.js";

let current = null;   // conversation on screen
let running = null;   // {controller, message, conversation}
let views = [];       // one a message of the current conversation

// ---- one message on screen ----

const thought = (message) => {
  if (message.running && !message.content) return "Thinking";
  return message.thoughtMs ? `Thought for ${(message.thoughtMs / 1000).toFixed(1)} s` : "Thought";
};

function figures(message) {
  const s = message.stats;
  if (!s || !s.tokens) return "";
  const parts = [`${s.tokens} tokens`];
  if (s.tokens > 1 && s.lastMs > s.firstMs) parts.push(`${((s.tokens - 1) / (s.lastMs - s.firstMs) * 1000).toFixed(1)} tokens/s`);
  parts.push(`first after ${s.firstMs < 995 ? `${Math.round(s.firstMs)} ms` : `${(s.firstMs / 1000).toFixed(2)} s`}`);
  if (message.finish === "length") parts.push("cut off: most tokens reached");
  if (message.finish === "stopped") parts.push("stopped");
  return parts.join(" · ");
}

/** Colours say how likely each token was: from the accent (certain) to red (a surprise). */
function colouredTokens(tokens) {
  const box = h("div.tokens", {});
  for (const token of tokens) {
    const p = Math.exp(token.logprob);
    const level = p > 0.9 ? 0 : p > 0.6 ? 1 : p > 0.3 ? 2 : p > 0.1 ? 3 : 4;
    const span = h(`span.token.p${level}`, { tabindex: "0", "aria-label": `${token.token}, ${(p * 100).toFixed(1)} %` }, token.text);
    const show = () => showTip(span, token);
    span.addEventListener("mouseenter", show);
    span.addEventListener("focus", show);
    span.addEventListener("mouseleave", hideTip);
    span.addEventListener("blur", hideTip);
    box.append(span);
  }
  return box;
}

function showTip(span, token) {
  const tip = $("tip");
  const rows = (token.top ?? []).map((entry) => {
    const meter = h("meter", { min: 0, max: 1, value: Math.exp(entry.logprob) });
    return h(entry.token === token.token ? "tr.chosen" : "tr", {}, h("td", {}, JSON.stringify(entry.token).slice(1, -1)),
             h("td", {}, meter), h("td.number", {}, `${(Math.exp(entry.logprob) * 100).toFixed(2)} %`));
  });
  tip.replaceChildren(h("table", {}, h("tbody", {}, rows)));
  tip.hidden = false;
  const at = span.getBoundingClientRect();
  const room = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(8, Math.min(at.left, innerWidth - room.width - 8))}px`;
  tip.style.top = `${at.top - room.height - 8 > 8 ? at.top - room.height - 8 : at.bottom + 8}px`;
}
function hideTip() { $("tip").hidden = true; }

class View {
  constructor(message) {
    this.message = message;
    this.content = h("div.content", {});
    if (message.role === "user") {
      this.root = h("article.message.user", { "aria-label": "You" }, this.content, h("div.tools", {},
        button("edit", "Edit and ask again", () => editMessage(this)), this.copyButton()));
      this.content.textContent = message.content;
    } else {
      this.summary = h("span", {});
      this.thoughts = h("div.thoughts", {});
      this.fold = h("details.fold", { hidden: true }, h("summary", {}, icon("fold"), this.summary), this.thoughts);
      this.figures = h("span.figures", {});
      this.root = h("article.message.assistant", { "aria-label": "Answer" }, this.fold, this.content, h("div.tools", {},
        this.copyButton(), button("again", "Answer again", () => regenerate(message)), this.figures));
      this.update();
    }
  }
  copyButton() {
    const made = button("copy", "Copy", () => copy(this.message.content, made));
    return made;
  }
  update() {
    const m = this.message;
    this.root.classList.toggle("running", Boolean(m.running));
    this.fold.hidden = !m.reasoning;
    this.fold.classList.toggle("busy", Boolean(m.running && !m.content));
    this.summary.textContent = thought(m);
    if (this.thoughts.textContent !== m.reasoning) this.thoughts.textContent = m.reasoning;
    const coloured = $("colours").checked && m.tokens?.length;
    this.content.replaceChildren(...(coloured ? [colouredTokens(m.tokens)] : markdown(m.content)));
    if (m.error) this.content.append(h("p.error", { role: "alert" }, m.error));
    this.figures.textContent = figures(m);
  }
}

// ---- the conversation on screen ----

const atEnd = () => { const s = $("scroll"); return s.scrollHeight - s.scrollTop - s.clientHeight < 60; };
export function toEnd() { $("scroll").scrollTop = $("scroll").scrollHeight; }

function showConversation() {
  hideTip();
  views = current.messages.map((message) => new View(message));
  $("messages").replaceChildren(...(views.length ? views.map((view) => view.root) : [welcome()]));
  toEnd();
  listConversations();
}

function welcome() {
  const ask = (text) => h("button.suggestion", { type: "button", onclick: () => { $("input").value = text; submit(); } }, text);
  return h("div.welcome", {}, h("h1", {}, "What is on your mind?"), h("div.suggestions", {},
    ["What is 2+2? Answer briefly.", "Explain sparse attention in three sentences.", "Write a haiku about a plumb line."].map(ask)));
}

function listConversations() {
  const now = new Date().toDateString();
  $("conversations").replaceChildren(...store.conversations.map((conversation) => {
    const date = new Date(conversation.at);
    const when = date.toDateString() === now ? date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" })
                                             : date.toLocaleDateString([], { day: "numeric", month: "short" });
    const drop = button("trash", "Delete", () => dropConversation(conversation));
    return h(conversation === current ? "li.chosen" : "li", {},
      h("button.pick", { type: "button", "aria-current": conversation === current && "true", onclick: () => open(conversation) },
        h("span.title", {}, conversation.title || "New chat"), h("time", {}, when)), drop);
  }));
}

function open(conversation) {
  current = conversation;
  document.body.classList.remove("side-open");
  showConversation();
}

function dropConversation(conversation) {
  if (running?.conversation === conversation) stop();
  store.remove(conversation);
  if (conversation === current) newChat();
  else listConversations();
}

export function newChat() {
  current = store.conversations.find((c) => c.messages.length === 0) ?? store.add();
  open(current);
  $("input").focus();
}

// ---- asking ----

export function submit() {
  const text = $("input").value.trim();
  if (!text) return;
  if (running) return toast("An answer is still being written: Esc stops it.");
  $("input").value = "";
  grow();
  current.messages.push({ role: "user", content: text });
  answer();
}

function regenerate(message) {
  if (running) return toast("An answer is still being written: Esc stops it.");
  current.messages.length = current.messages.indexOf(message);
  answer();
}

function editMessage(view) {
  if (running) return toast("An answer is still being written: Esc stops it.");
  const area = h("textarea.edit", { rows: 3, "aria-label": "Edit message" });
  area.value = view.message.content;
  const done = () => {
    const text = area.value.trim();
    if (!text) return;
    current.messages.length = current.messages.indexOf(view.message);
    current.messages.push({ role: "user", content: text });
    answer();
  };
  area.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); done(); }
    if (event.key === "Escape") { event.stopPropagation(); showConversation(); }
  });
  view.root.classList.add("editing");
  view.root.replaceChildren(area, h("div.row", {}, h("button", { type: "button", onclick: showConversation }, "Cancel"),
    h("button.main", { type: "button", onclick: done }, "Ask again")));
  area.focus();
}

function requestBody(conversation) {
  const set = store.settings;
  const messages = conversation.messages.map(({ role, content }) => ({ role, content }));
  if (set.system) messages.unshift({ role: "system", content: set.system });
  const body = { messages, stream: true, stream_options: { include_usage: true },
                 chat_template_kwargs: { enable_thinking: $("thinking").checked } };
  for (const name of ["temperature", "top_p", "max_tokens", "seed"])
    if (set[name] !== undefined && set[name] !== "") body[name] = Number(set[name]);
  if ($("colours").checked) Object.assign(body, { logprobs: true, top_logprobs: 5 });
  return body;
}

// The bytes of a token may be a part of a character, which then appears with its last token.
function tokenReader() {
  const decoder = new TextDecoder();
  return (entry) => ({ token: entry.token, logprob: entry.logprob, top: entry.top_logprobs,
                       text: decoder.decode(new Uint8Array(entry.bytes ?? []), { stream: true }) });
}

async function answer() {
  const conversation = current;
  const body = requestBody(conversation);
  const message = { role: "assistant", content: "", reasoning: "", running: true, tokens: [], stats: null };
  conversation.messages.push(message);
  store.touch(conversation);
  showConversation();
  const controller = new AbortController();
  running = { controller, message, conversation };
  document.body.classList.add("answering");
  setSend(true);
  try {
    await receive(message, stream("v1/chat/completions", body, controller.signal));
  } catch (error) {
    if (error.name === "AbortError") message.finish = "stopped";
    else message.error = error.message || "the server cannot be reached";
    if (error.status === 401) message.error = "A valid API key is needed: put it into the settings.";
  }
  delete message.running;
  running = null;
  document.body.classList.remove("answering");
  setSend(false);
  refresh(message);
  $("live").textContent = "";
  store.touch(conversation);
  listConversations();
}

async function receive(message, chunks) {
  const begin = performance.now();
  const readToken = tokenReader();
  let drawn = false;
  const draw = () => { drawn = false; refresh(message); live(message); };
  const note = (count) => {
    const now = performance.now() - begin;
    message.stats ??= { firstMs: now, lastMs: now, tokens: 0 };
    message.stats.lastMs = now;
    message.stats.tokens += count;
  };
  for await (const chunk of chunks) {
    if (chunk.usage && message.stats) message.stats.tokens = chunk.usage.completion_tokens;
    const choice = chunk.choices?.[0];
    if (!choice) continue;
    const delta = choice.delta ?? {};
    const reasoning = delta.reasoning_content ?? delta.reasoning ?? "";
    const content = delta.content ?? "";
    if (reasoning || content) note(1);
    message.reasoning += reasoning;
    if (content && !message.content && message.reasoning) message.thoughtMs = performance.now() - begin;
    message.content += content;
    for (const entry of choice.logprobs?.content ?? []) message.tokens.push(readToken(entry));
    if (choice.finish_reason) message.finish = choice.finish_reason;
    if (!drawn) {
      drawn = true;
      requestAnimationFrame(draw);
    }
  }
}

function live(message) {
  const s = message.stats;
  if (!message.running || !s || s.tokens < 2 || s.lastMs <= s.firstMs) return;
  $("live").textContent = `${((s.tokens - 1) / (s.lastMs - s.firstMs) * 1000).toFixed(0)} tokens/s`;
}

function refresh(message) {
  const view = views.find((candidate) => candidate.message === message);
  if (!view) return;  // another conversation is on screen
  const follow = atEnd();
  view.update();
  if (follow) toEnd();
}

export function stop() { running?.controller.abort(); }

function setSend(stopping) {
  const send = $("send");
  send.classList.toggle("stopping", stopping);
  send.replaceChildren(icon(stopping ? "stop" : "send"));
  send.title = stopping ? "Stop (Esc)" : "Send (Enter)";
  send.setAttribute("aria-label", stopping ? "Stop" : "Send");
}

function grow() {
  const input = $("input");
  input.style.height = "auto";
  input.style.height = `${Math.min(input.scrollHeight, innerHeight * 0.35)}px`;
}

export function startChat() {
  $("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    if (running) stop();
    else submit();
  });
  $("input").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    submit();
  });
  $("input").addEventListener("input", grow);
  $("new-chat").addEventListener("click", newChat);
  $("colours").addEventListener("change", () => views.forEach((view) => view.message.role === "assistant" && view.update()));
  $("scroll").addEventListener("scroll", () => { $("down").hidden = atEnd(); hideTip(); });
  $("down").addEventListener("click", toEnd);
  for (const name of ["thinking", "colours"]) {
    $(name).checked = store.settings[name] ?? $(name).checked;
    $(name).addEventListener("change", () => { store.settings[name] = $(name).checked; store.saveSettings(); });
  }
  newChat();
}
