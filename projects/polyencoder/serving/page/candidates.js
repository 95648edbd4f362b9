// Candidates of one's own: lines in a field, typed, or from a file that is chosen or dropped.

import { info } from "./server.js";

const at = (id) => document.getElementById(id);

// The lines of a field; of JSON lines their "text", and their "id" and "metadata" to be shown.
export function candidatesOf(field) {
  const lines = at(field).value.split("\n").map((line) => line.trim()).filter((line) => line);
  return lines.map((line) => {
    try {
      const { text, id, metadata } = JSON.parse(line);
      if (typeof text === "string") return { text, id, metadata };
    } catch {
      // a line of text
    }
    return { text: line };
  });
}

// Puts a file's lines into a field: as many as the server ranks in one request, and says so.
async function read(file, field) {
  const note = at(`${field}-note`);
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  } catch (error) {
    const why = error instanceof TypeError ? "it is not text in UTF-8" : error.message;
    note.textContent = `${file.name}: not read: ${why}`;
    return; // a folder, a file that is gone, another encoding: what was in the field stays
  }
  const lines = text.split("\n").filter((line) => line.trim());
  if (!lines.length) {
    note.textContent = `${file.name}: not read: it has no text`;
    return;
  }
  const most = info.limits.documents || lines.length;
  at(field).value = lines.slice(0, most).join("\n");
  const left = lines.length - most;
  const cut = left > 0 ? ` They are the first ${most}: this server ranks no more in a request; ${left} are left out.` : "";
  const where = field === "own" ? ", in place of the index's, until this page is closed" : "";
  note.textContent = `${file.name}: ${Math.min(lines.length, most)} candidates, ranked with each question${where}.${cut}`;
}

// `current` gives the field of the part of the page that is open.
export function takeFiles(current) {
  for (const kind of ["dragover", "drop"]) {
    document.addEventListener(kind, (event) => {
      if (!event.dataTransfer.types.includes("Files")) return; // text is dropped where the browser drops it
      event.preventDefault();
      if (kind === "drop" && event.dataTransfer.files.length) {
        if (current() === "own") at("own-part").open = true;
        read(event.dataTransfer.files[0], current());
      }
    });
  }
  for (const input of document.querySelectorAll("input[type=file]")) {
    input.addEventListener("change", () => input.files.length && read(input.files[0], input.dataset.for));
    at(input.dataset.for).addEventListener("input", () => {
      input.value = "";
      at(`${input.dataset.for}-note`).textContent = "";
    });
  }
}
