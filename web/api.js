// The server this page came from. Paths are relative, so that a prefix in front of all of them works.

const keys = { get api() { return sessionStorage.getItem("plumb.key") ?? ""; },
               get admin() { return sessionStorage.getItem("plumb.admin") ?? ""; } };

export function setKeys(api, admin) {
  sessionStorage.setItem("plumb.key", api);
  sessionStorage.setItem("plumb.admin", admin);
}

function headers(admin) {
  const key = (admin && keys.admin) || keys.api;
  return key ? { Authorization: `Bearer ${key}` } : {};
}

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function errorOf(answer) {
  const text = await answer.text();
  try {
    return new ApiError(answer.status, JSON.parse(text).error.message);
  } catch {
    return new ApiError(answer.status, text.slice(0, 300) || answer.statusText);
  }
}

export async function get(path, { admin = false } = {}) {
  const answer = await fetch(path, { headers: headers(admin), cache: "no-store" });
  if (!answer.ok) throw await errorOf(answer);
  return answer;
}

/** Health answers 503 with a body while it is not ready. */
export async function health() {
  const answer = await fetch("health", { cache: "no-store" });
  return { ok: answer.ok, ...(await answer.json()) };
}

/** Yields the objects of a stream; throws ApiError, and AbortError when `signal` fires. */
export async function* stream(path, body, signal) {
  const answer = await fetch(path, {
    method: "POST", signal, body: JSON.stringify(body),
    headers: { "Content-Type": "application/json", ...headers(false) },
  });
  if (!answer.ok) throw await errorOf(answer);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new ApiError(0, "the connection ended before the answer did");
    rest += value;
    const events = rest.split("\n\n");
    rest = events.pop();
    for (const event of events) {
      if (!event.startsWith("data: ")) continue;  // a comment that keeps proxies awake
      const data = event.slice(6);
      if (data === "[DONE]") return;
      const object = JSON.parse(data);
      if (object.error) throw new ApiError(500, object.error.message);
      yield object;
    }
  }
}
