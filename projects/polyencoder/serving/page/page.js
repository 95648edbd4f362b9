// The page's side of /v1/chat. All that is shown is set as text, never as markup.
"use strict";

const at = (id) => document.getElementById(id);
const SHOWN = 10; // candidates of a reply, all that a probability takes into account
const HOW = {
  exact: "every candidate of the index was compared",
  certified: "lists were compared, and it is proved that none is better",
  approximate: "lists were compared; a better candidate may be missing",
};

let messages = [];
let persona = [];
let feedback = false;
let calibrated = false;

at("key").value = sessionStorage.getItem("key") || "";
at("key").addEventListener("change", () => {
  sessionStorage.setItem("key", at("key").value);
  introduce();
});

async function ask(path, body) {
  const headers = { "Content-Type": "application/json" };
  if (at("key").value) headers.Authorization = `Bearer ${at("key").value}`;
  const options = body === undefined ? { headers } : { method: "POST", headers, body: JSON.stringify(body) };
  const answer = await fetch(path, options);
  if (answer.status === 401) {
    at("key-part").hidden = false;
    at("key-part").open = true;
  }
  const said = await answer.json();
  if (!answer.ok) throw new Error(said.message);
  return said;
}

async function introduce() {
  try {
    const info = await ask("info");
    feedback = info.feedback;
    calibrated = info.calibrated;
    const candidates = info.candidates === null ? "no index" : `${info.candidates} candidates`;
    const probable = calibrated ? "calibrated" : "not calibrated: scores without probabilities";
    at("about").textContent = `${info.model} (${info.architecture} model), ${candidates}, ${probable}`;
    if (info.candidates === null) {
      at("what").textContent = "This server has no index to choose replies from. Give your own candidates above.";
      at("try").textContent = "Its other routes are listed at /docs. With an index: polyencoder serve --index INDEX.";
      at("examples").hidden = true;
      at("own-part").open = true;
    }
  } catch (error) {
    at("about").textContent = error.message;
  }
}

function turn(kind, text) {
  const shown = document.createElement("p");
  shown.className = `turn ${kind}`;
  shown.textContent = text;
  at("dialogue").append(shown);
  shown.scrollIntoView({ block: "nearest" });
  return shown;
}

function showReply(answer, asked) {
  const shown = at("reply").content.cloneNode(true).firstElementChild;
  const results = answer.results;
  shown.querySelector(".text").textContent = answer.reply;
  const steps = Object.entries(answer.milliseconds);
  const total = steps.reduce((sum, [, value]) => sum + value, 0).toFixed(1);
  const each = steps.map(([step, value]) => `${step} ${value.toFixed(1)}`).join(", ");
  const what = answer.answered ? "Why this reply?" : "No candidate was good enough.";
  shown.querySelector("summary").textContent = `${what} ${results.length} candidates in ${total} ms (${each})`;
  const scores = results.map((one) => one.rerank_score ?? one.score ?? one.relevance);
  const [low, high] = [Math.min(...scores), Math.max(...scores)];
  const list = shown.querySelector("ol");
  results.forEach((one, place) => {
    const width = one.probability ?? (high > low ? (scores[place] - low) / (high - low) : 1);
    list.append(candidate(one, width, answer, asked));
  });
  if (calibrated) list.append(noneOf(results));
  shown.querySelector(".note").textContent = calibrated
    ? "Probability: that a candidate is the right reply, among all that there are."
    : "The model is not calibrated: bars show scores, from the lowest shown to the highest.";
  at("dialogue").append(shown);
  shown.scrollIntoView({ block: "nearest" });
}

function figures(shown, values) {
  for (const [label, value, title] of values) {
    if (value === undefined) continue;
    const pair = document.createElement("div");
    const [term, text] = [document.createElement("dt"), document.createElement("dd")];
    [term.textContent, text.textContent] = [label, value];
    if (title) pair.title = title;
    pair.append(term, text);
    shown.querySelector(".numbers").append(pair);
  }
}

const percent = (probability) => `${(100 * probability).toFixed(1)} %`;

function noneOf(results) {
  const known = new Map(results.map((one) => [one.text, one.probability ?? 0])); // equal texts are one candidate
  const left = Math.max(0, 1 - [...known.values()].reduce((sum, one) => sum + one, 0));
  const shown = row("None of these", left, "probability");
  shown.className = "none";
  figures(shown, [["probability", percent(left)]]);
  return shown;
}

function row(text, width, measure) {
  const shown = at("candidate").content.cloneNode(true).firstElementChild;
  shown.querySelector(".text").textContent = text;
  const meter = shown.querySelector("meter");
  meter.value = width;
  meter.setAttribute("aria-label", measure);
  return shown;
}

function candidate(one, width, answer, asked) {
  const shown = row(one.text, width, one.probability === undefined ? "score" : "probability");
  figures(shown, [
    ["probability", one.probability === undefined ? undefined : percent(one.probability)],
    ["relevance", one.relevance?.toFixed(3), "from 0 to 1, in the order of the model's scores"],
    ["reranked", one.rerank_score?.toFixed(3), "the cross-encoder's score"],
    ["score", one.score?.toFixed(3), "the model's score of this candidate for the dialogue"],
    ["found", one.found, HOW[one.found]],
    ["id", one.id],
    ...Object.entries(one.metadata ?? {}).map(([key, value]) => [
      key,
      typeof value === "string" ? value : JSON.stringify(value),
    ]),
  ]);
  shown.querySelector(".thumbs").hidden = !feedback;
  for (const [kind, good] of [["up", true], ["down", false]]) {
    const button = shown.querySelector(`.${kind}`);
    button.title = good ? "a good reply" : "not a good reply";
    button.setAttribute("aria-label", `${good ? "A good" : "Not a good"} reply: ${one.text}`);
    button.addEventListener("click", async () => {
      try {
        const others = answer.results.map((other) => other.text);
        await ask("v1/feedback", { ...asked, response: one.text, candidates: others, good });
        for (const each of shown.querySelectorAll(".thumbs button")) {
          each.setAttribute("aria-pressed", String(each === button));
        }
      } catch (error) {
        turn("problem", error.message);
      }
    });
  }
  return shown;
}

at("say").addEventListener("submit", (event) => {
  event.preventDefault();
  say(at("message").value);
});

for (const example of at("examples").children) {
  example.addEventListener("click", () => {
    at("message").value = example.textContent;
    say(example.textContent);
  });
}

async function say(text) {
  const send = at("say").querySelector("[type=submit]");
  if (send.disabled || !text.trim()) return;
  send.disabled = true;
  at("welcome").hidden = true;
  if (!messages.length) {
    persona = at("persona").value.split("\n").filter((line) => line.trim());
    at("persona").disabled = true;
  }
  const said = turn("said", text);
  const asked = { messages: [...messages, { role: "user", content: text }], persona };
  try {
    const own = candidatesOf(at("own").value);
    const answer = await (own.length ? ranked(asked, own) : ask("v1/chat", { ...asked, top_k: SHOWN }));
    messages = [...asked.messages, { role: "assistant", content: answer.reply }];
    at("message").value = "";
    showReply(answer, asked);
  } catch (error) {
    said.remove(); // it is in the field still
    turn("problem", error.message);
  }
  send.disabled = false;
  at("message").focus();
}

// The lines of a text; of JSON lines their "text".
function candidatesOf(text) {
  const lines = text.split("\n").map((line) => line.trim()).filter((line) => line);
  return lines.map((line) => {
    try {
      return JSON.parse(line).text ?? line;
    } catch {
      return line;
    }
  });
}

// Candidates of one's own, ranked as /v1/chat does those of the index.
async function ranked({ messages: dialogue, persona: lines }, documents) {
  const system = lines.length ? [{ role: "system", content: lines.join("\n") }] : [];
  const start = performance.now();
  const found = await ask("v1/rerank", { messages: [...system, ...dialogue], documents, top_n: SHOWN });
  const measure = calibrated ? "probability" : "relevance";
  const results = found.results.map((one) => ({ text: documents[one.index], [measure]: one.relevance_score }));
  return { reply: results[0].text, answered: true, results, milliseconds: { request: performance.now() - start } };
}

for (const kind of ["dragover", "drop"]) {
  at("own-part").addEventListener(kind, async (event) => {
    event.preventDefault();
    if (kind === "drop" && event.dataTransfer.files.length) at("own").value = await event.dataTransfer.files[0].text();
  });
}

at("again").addEventListener("click", () => {
  messages = [];
  at("persona").disabled = false;
  at("dialogue").replaceChildren();
  at("welcome").hidden = false;
  at("message").focus();
});

introduce();
