// Conversations and settings, in this browser only.

const CONVERSATIONS = "plumb.conversations";
const SETTINGS = "plumb.settings";

function read(name, fallback) {
  try {
    return JSON.parse(localStorage.getItem(name)) ?? fallback;
  } catch {
    return fallback;
  }
}

export const settings = read(SETTINGS, {});
export function saveSettings() {
  localStorage.setItem(SETTINGS, JSON.stringify(settings));
}

export const conversations = read(CONVERSATIONS, []);

export function save() {
  // Probabilities of every token would fill the browser's few megabytes soon.
  const lean = (key, value) => (key === "tokens" ? undefined : value);
  for (;;) {
    try {
      return localStorage.setItem(CONVERSATIONS, JSON.stringify(conversations, lean));
    } catch {  // full: the oldest goes
      if (conversations.length < 2) return undefined;
      conversations.pop();
    }
  }
}

export function add() {
  const made = { id: crypto.getRandomValues(new Uint32Array(2)).join("-"), title: "", messages: [], at: Date.now() };
  conversations.unshift(made);
  return made;
}

export function remove(conversation) {
  conversations.splice(conversations.indexOf(conversation), 1);
  save();
}

/** To the front, with its first question as the title. */
export function touch(conversation) {
  conversation.at = Date.now();
  conversation.title ||= (conversation.messages[0]?.content ?? "").replace(/\s+/g, " ").slice(0, 80);
  const at = conversations.indexOf(conversation);
  if (at > 0) conversations.unshift(...conversations.splice(at, 1));
  save();
}
