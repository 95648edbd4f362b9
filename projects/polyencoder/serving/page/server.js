// Requests to the server, with its key, and what it says of itself.

const key = document.getElementById("key");
const keyPart = document.getElementById("key-part");
const SHOWN = 10; // results of a list, all that a probability takes into account

key.value = sessionStorage.getItem("key") || "";

export const info = { candidates: null, calibrated: false, feedback: false, limits: { documents: 0, bytes: 0 } };

export async function ask(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  if (key.value) headers.Authorization = `Bearer ${key.value}`;
  const options = body === undefined ? { headers } : { method: "POST", headers, body: JSON.stringify(body), signal };
  const answer = await fetch(path, options);
  if (answer.status === 401) {
    keyPart.hidden = false;
    keyPart.open = true;
  }
  const said = await answer.json();
  if (!answer.ok) throw new Error(said.message);
  return said;
}

export async function introduced() {
  return Object.assign(info, await ask("info"));
}

export function onKey(changed) {
  key.addEventListener("change", () => {
    sessionStorage.setItem("key", key.value);
    changed();
  });
}

const normal = (text) => text.toLowerCase().split(/\s+/).filter((word) => word).join(" ");

// The best of the index, or of one's own candidates where there are any: as in the server's searches, none that repeats
// a turn. `signal` aborts it.
export async function best(route, asked, given, signal) {
  if (!given.length) return ask(`v1/${route}`, { ...asked, top_k: SHOWN }, signal);
  const start = performance.now();
  const turns = new Set(route === "rerank" ? [] : asked.messages.map((message) => normal(message.content)));
  const own = given.filter((one) => !turns.has(normal(one.text)));
  const none = { reply: "I have no other answer.", answered: false, results: [], milliseconds: { request: 0 } };
  if (!own.length) return none;
  const documents = own.map((one) => one.text);
  const found = await ask("v1/rerank", { ...asked, documents, top_n: SHOWN }, signal);
  const measure = info.calibrated ? "probability" : "relevance";
  const results = found.results.map((one) => ({ ...own[one.index], [measure]: one.relevance_score }));
  return { reply: results[0].text, answered: true, results, milliseconds: { request: performance.now() - start } };
}
