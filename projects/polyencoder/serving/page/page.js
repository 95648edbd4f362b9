// The page's side of /v1/chat. All that is shown is set as text, never as markup.
"use strict";

const at = (id) => document.getElementById(id);
const SHOWN = 10; // candidates of a reply

let messages = [];
let persona = [];
let feedback = false;

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
    const candidates = info.candidates === null ? "no index: it cannot reply" : `${info.candidates} candidates`;
    const calibrated = info.calibrated ? "" : ", not calibrated: bars show scores, from the lowest that is shown to the highest";
    at("about").textContent = `${info.model} (${info.architecture}), ${candidates}${calibrated}`;
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
  shown.querySelector(".text").textContent = answer.reply;
  const steps = Object.entries(answer.milliseconds).map(([step, value]) => `${step} ${value.toFixed(1)} ms`);
  shown.querySelector("summary").textContent = [`${answer.results.length} candidates`, ...steps].join(", ");
  const scores = answer.results.map((one) => one.rerank_score ?? one.score);
  const [low, high] = [Math.min(...scores), Math.max(...scores)];
  answer.results.forEach((one, place) => {
    const width = one.probability ?? (high > low ? (scores[place] - low) / (high - low) : 1);
    shown.querySelector("ol").append(candidate(one, width, answer, asked));
  });
  at("dialogue").append(shown);
  shown.scrollIntoView({ block: "nearest" });
}

function candidate(one, width, answer, asked) {
  const shown = at("candidate").content.cloneNode(true).firstElementChild;
  const probability = one.probability === undefined ? [] : [`${(100 * one.probability).toFixed(1)} %`];
  const score = one.rerank_score === undefined ? one.score.toFixed(3) : `${one.rerank_score.toFixed(3)} of ${one.score.toFixed(3)}`;
  shown.querySelector(".text").textContent = one.text;
  shown.querySelector(".numbers").textContent = [...probability, score, one.found, one.id].join(" · ");
  const meter = shown.querySelector("meter");
  meter.value = width;
  meter.setAttribute("aria-label", probability.length ? "probability" : "score");
  shown.querySelector(".thumbs").hidden = !feedback;
  for (const [kind, good] of [["up", true], ["down", false]]) {
    const button = shown.querySelector(`.${kind}`);
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

at("say").addEventListener("submit", async (event) => {
  event.preventDefault();
  const text = at("message").value;
  const send = at("say").querySelector("[type=submit]");
  if (send.disabled || !text.trim()) return;
  send.disabled = true;
  if (!messages.length) {
    persona = at("persona").value.split("\n").filter((line) => line.trim());
    at("persona").disabled = true;
  }
  const said = turn("said", text);
  const asked = { messages: [...messages, { role: "user", content: text }], persona };
  try {
    const answer = await ask("v1/chat", { ...asked, top_k: SHOWN });
    messages = [...asked.messages, { role: "assistant", content: answer.reply }];
    at("message").value = "";
    showReply(answer, asked);
  } catch (error) {
    said.remove(); // it is in the field still
    turn("problem", error.message);
  }
  send.disabled = false;
  at("message").focus();
});

at("again").addEventListener("click", () => {
  messages = [];
  at("persona").disabled = false;
  at("dialogue").replaceChildren();
  at("message").focus();
});

introduce();
