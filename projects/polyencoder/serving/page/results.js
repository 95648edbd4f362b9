// A list of results with their figures. All that is shown is set as text, never as markup.

import { ask, info } from "./server.js";

const HOW = {
  exact: "exact: every candidate of the index was compared",
  certified: "certified: lists were compared, and it is proved that none is better",
  approximate: "approximate: lists were compared; a better candidate may be missing",
  words: "by their words",
};

// Fills the list and the note of a copy of a template; `asked` is what feedback says was asked.
export function fill(shown, answer, asked, failed) {
  const results = answer.results;
  const scores = results.map((one) => one.rerank_score ?? one.score ?? one.relevance);
  const [low, high] = [Math.min(...scores), Math.max(...scores)];
  const list = shown.querySelector("ol");
  results.forEach((one, place) => {
    const width = one.probability ?? (high > low ? (scores[place] - low) / (high - low) : 1);
    list.append(candidate(one, width, answer, asked, failed));
  });
  const calibrated = results.some((one) => one.probability !== undefined);
  if (calibrated) list.append(noneOf(results));
  const how = [...new Set(results.map((one) => HOW[one.found]).filter((one) => one))];
  const measure = calibrated
    ? "Probability: that a candidate is the right one, among all that there are."
    : "The model is not calibrated: bars show scores, from the lowest shown to the highest.";
  const note = results.length ? [measure, ...how.map((one) => `Found ${one}.`)] : [];
  shown.querySelector(".note").textContent = note.join(" ");
}

// "5 candidates in 12.3 ms (tokenize 0.3, ...)"
export function summary(answer) {
  const steps = Object.entries(answer.milliseconds);
  const total = steps.reduce((sum, [, value]) => sum + value, 0).toFixed(1);
  const each = steps.map(([step, value]) => `${step} ${value.toFixed(1)}`).join(", ");
  const count = answer.results.length;
  return `${count} candidate${count === 1 ? "" : "s"} in ${total} ms (${each})`;
}

// How sure the first result is, as sentences: none without a calibration.
export function certainty({ answered, results: [first] }) {
  if (!answered || first?.probability === undefined) return [];
  const promise = first.risk === undefined ? [] : [`Of such replies at most ${percent(first.risk)} are wrong.`];
  return [`Right with ${percent(first.probability)}.`, ...promise];
}

const percent = (probability) => `${(100 * probability).toFixed(1)} %`;

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

function noneOf(results) {
  const known = new Map(results.map((one) => [one.text, one.probability ?? 0])); // equal texts are one candidate
  const left = Math.max(0, 1 - [...known.values()].reduce((sum, one) => sum + one, 0));
  const shown = row("None of these", left, "probability");
  shown.className = "none";
  figures(shown, [["probability", percent(left)]]);
  return shown;
}

function row(text, width, measure) {
  const shown = document.getElementById("candidate").content.cloneNode(true).firstElementChild;
  shown.querySelector(".text").textContent = text;
  const meter = shown.querySelector("meter");
  meter.value = width;
  meter.setAttribute("aria-label", measure);
  return shown;
}

function candidate(one, width, answer, asked, failed) {
  const shown = row(one.text, width, one.probability === undefined ? "score" : "probability");
  figures(shown, [
    ["probability", one.probability === undefined ? undefined : percent(one.probability)],
    ["relevance", one.relevance?.toFixed(3), "from 0 to 1, in the order of the model's scores"],
    ["reranked", one.rerank_score?.toFixed(3), "the cross-encoder's score"],
    ["score", one.score?.toFixed(3), "the model's score of this candidate"],
    ["found", one.found],
    ["id", one.id],
    ...Object.entries(one.metadata ?? {}).map(([name, value]) => [
      name,
      typeof value === "string" ? value : JSON.stringify(value),
    ]),
  ]);
  shown.querySelector(".thumbs").hidden = !info.feedback;
  for (const [kind, good] of [["up", true], ["down", false]]) {
    const button = shown.querySelector(`.${kind}`);
    button.title = good ? "a good answer" : "not a good answer";
    button.setAttribute("aria-label", `${good ? "A good" : "Not a good"} answer: ${one.text}`);
    button.addEventListener("click", async () => {
      try {
        const others = answer.results.map((other) => other.text);
        await ask("v1/feedback", { ...asked, response: one.text, candidates: others, good, risk: one.risk });
        for (const each of shown.querySelectorAll(".thumbs button")) {
          each.setAttribute("aria-pressed", String(each === button));
        }
      } catch (error) {
        failed(error.message);
      }
    });
  }
  return shown;
}
