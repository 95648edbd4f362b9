// The page: a chat, a search and a reranking, each with a form, words for who comes first, and results.

import { candidatesOf, takeFiles } from "./candidates.js";
import { certainty, fill, summary } from "./results.js";
import { ask, best, introduced, onKey } from "./server.js";

const at = (id) => document.getElementById(id);
const copyOf = (id) => at(id).content.cloneNode(true).firstElementChild;
const tabs = [...at("tabs").children];
const EXAMPLE = {
  question: "I sent the shoes back last week, where is my money?",
  documents: [
    "We open at nine.",
    "Refunds take five working days.",
    "To reset your password, open Settings.",
    "Send it back within 30 days.",
  ],
};

let messages = [];
let dialogue = new AbortController(); // of its requests

async function introduce() {
  try {
    const info = await introduced();
    const candidates = info.candidates === null ? "no index" : `${info.candidates} candidates`;
    const probable = info.search_calibrated ? "calibrated" : "not calibrated: scores without probabilities";
    at("kept").textContent = info.feedback ? "It keeps those that you rate, with the question." : "It keeps nothing of them.";
    at("about").textContent = `${info.model} (${info.architecture} model), ${candidates}, ${probable}`;
    if (info.candidates === null) {
      at("what").textContent = "This server has no index to choose replies from. Give your own candidates above.";
      at("searched").textContent = "This server has no index to search. Give your own candidates above.";
      at("try").textContent = "Its other routes are listed at /docs. With an index: polyencoder serve --index INDEX.";
      at("own-part").open = true;
    } else {
      await offer(info);
    }
  } catch (error) {
    at("about").textContent = error.message;
  }
}

// Messages to try: the server's, or the first sentences of a few candidates, so that they are of what the index is about.
async function offer({ examples, search_calibrated: calibrated }) {
  let texts = examples;
  if (!texts.length) {
    const some = { query: "hello", top_k: 3, ...(calibrated ? { min_probability: 0 } : {}) };
    const { results } = await ask("v1/search", some);
    texts = results.map(({ text }) => text.split(/(?<=[.?!])\s/)[0]);
  }
  if (!texts.length) return; // an empty index
  at("try").textContent = `Write a message below, or try ${examples.length ? "one of these" : "words of its candidates"}:`;
  offered("examples", texts, (text) => {
    at("message").value = text;
    say(text);
  });
  offered("searches", texts, (text) => {
    at("query").value = text;
    at("find").requestSubmit();
  });
}

function offered(part, texts, take) {
  at(part).replaceChildren(
    ...texts.map((text) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = text;
      button.addEventListener("click", () => take(text));
      return button;
    }),
  );
}

// Shows one part, which is in the address, so that it can be linked to.
function open(name, { focus = false } = {}) {
  for (const tab of tabs) {
    const chosen = tab.getAttribute("aria-controls") === name;
    tab.setAttribute("aria-selected", String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
    at(tab.getAttribute("aria-controls")).hidden = !chosen;
    if (chosen && focus) tab.focus();
  }
  at("own-part").hidden = name === "rerank";
  history.replaceState(null, "", name === "chat" ? location.pathname : `#${name}`);
}

const named = () => tabs.map((tab) => tab.getAttribute("aria-controls")).find((name) => `#${name}` === location.hash);
const opened = () => tabs.findIndex((tab) => tab.tabIndex === 0);

tabs.forEach((tab, place) => {
  tab.addEventListener("click", () => open(tab.getAttribute("aria-controls")));
  tab.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: place - 1, ArrowRight: place + 1, Home: 0, End: tabs.length - 1 };
    if (!(event.key in steps)) return;
    event.preventDefault();
    const next = tabs[(steps[event.key] + tabs.length) % tabs.length];
    open(next.getAttribute("aria-controls"), { focus: true });
  });
});

function turn(kind, text) {
  const shown = document.createElement("p");
  shown.className = `turn ${kind}`;
  shown.textContent = text;
  at("dialogue").append(shown);
  shown.scrollIntoView({ block: "nearest" });
  return shown;
}

function showReply(answer, asked) {
  const shown = copyOf("reply");
  shown.querySelector(".text").textContent = answer.reply;
  const what = answer.answered ? "Why this reply?" : "No candidate was good enough.";
  shown.querySelector("summary").textContent = [what, ...certainty(answer)].join(" ");
  fill(shown, answer, asked, (why) => turn("problem", why));
  shown.querySelector(".note").textContent += ` ${summary(answer)}.`;
  at("dialogue").append(shown);
  shown.scrollIntoView({ block: "nearest" });
}

async function say(text) {
  const send = at("say").querySelector("[type=submit]");
  if (send.disabled || !text.trim()) return;
  send.disabled = true;
  at("welcome").hidden = true;
  const { signal } = dialogue;
  const said = turn("said", text);
  const asked = { messages: [...messages, { role: "user", content: text }] };
  try {
    const answer = await best("chat", asked, candidatesOf("own"), signal);
    messages = asked.messages;
    if (answer.answered) messages = [...messages, { role: "assistant", content: answer.reply }];
    at("message").value = "";
    showReply(answer, asked);
  } catch (error) {
    if (signal.aborted) return; // another dialogue has begun
    said.remove(); // it is in the field still
    turn("problem", error.message);
  }
  send.disabled = false;
  at("message").focus();
}

at("say").addEventListener("submit", (event) => {
  event.preventDefault();
  say(at("message").value);
});

at("again").addEventListener("click", () => {
  dialogue.abort();
  dialogue = new AbortController();
  at("say").querySelector("[type=submit]").disabled = false;
  messages = [];
  at("dialogue").replaceChildren();
  at("welcome").hidden = false;
  at("message").focus();
});

// A form whose results replace the words for who comes first: `find` gives an answer for messages.
function answers(part, form, input, find) {
  const [welcome, results] = [at(part).querySelector(".welcome"), at(part).querySelector(".results")];
  at(form).addEventListener("submit", async (event) => {
    event.preventDefault();
    const [send, text] = [at(form).querySelector("[type=submit]"), at(input).value];
    if (send.disabled || !text.trim()) return;
    send.disabled = true;
    const failed = (why) => {
      const shown = document.createElement("p");
      shown.className = "turn problem";
      shown.textContent = why;
      results.append(shown);
    };
    const asked = { messages: [{ role: "user", content: text }] };
    results.replaceChildren();
    welcome.hidden = true;
    try {
      const answer = await find(asked);
      const shown = copyOf("found");
      shown.querySelector("h2").textContent = answer.results.length ? summary(answer) : "No candidate was good enough.";
      fill(shown, answer, asked, failed);
      results.append(shown);
    } catch (error) {
      failed(error.message);
    }
    send.disabled = false;
    at(input).focus();
  });
}

answers("search", "find", "query", (asked) => best("search", asked, candidatesOf("own")));
answers("rerank", "sort", "question", (asked) => best("rerank", asked, candidatesOf("documents")));

at("sorted-example").addEventListener("click", () => {
  [at("question").value, at("documents").value] = [EXAMPLE.question, EXAMPLE.documents.join("\n")];
  at("sort").requestSubmit();
});

takeFiles(() => (tabs[opened()].id === "rerank-tab" ? "documents" : "own"));
onKey(introduce);
addEventListener("hashchange", () => open(named() ?? "chat"));
open(named() ?? "chat");
at("message").focus({ preventScroll: true }); // without effect on a part that is hidden
introduce();
