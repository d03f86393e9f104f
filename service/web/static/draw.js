// What a file of true counts has, before it is drawn: its rows, columns and first labels. The browser reads the file, and
// shows no count. Without a script the form can do the same, but says less.
"use strict";

const input = document.getElementById("counts");
const look = document.getElementById("counts-look");
const drawn = document.getElementById("what-is-drawn");
const certain = drawn.closest("label").querySelector("input");
const unknown = drawn.textContent;
const beginning = 1 << 16; // characters with the names and the first rows

// The first records of a table, as the server splits it.
function records(text, most) {
  const first = text.split(/\r?\n/, 1)[0];
  const other = ["\t", ";"].find((mark) => first.includes(mark));
  const separator = first.split(",").some((name) => name.replaceAll('"', "") === "count") ? "," : other ?? ",";
  const found = [];
  let record = [], cell = "", quoted = false;
  for (const mark of text) {
    if (mark === '"') {
      quoted = !quoted;
    } else if (mark === separator && !quoted) {
      record.push(cell);
      cell = "";
    } else if (mark === "\n" && !quoted) {
      found.push([...record, cell]);
      record = [];
      cell = "";
      if (found.length === most) return found;
    } else if (mark !== "\r") {
      cell += mark;
    }
  }
  return cell || record.length ? [...found, [...record, cell]] : found;
}

// The number of lines with text, and the beginning of a file; an error if it is no text in UTF-8.
async function read(file) {
  let lines = 0, quoted = false, filled = false, text = "";
  const reader = file.stream().pipeThrough(new TextDecoderStream("utf-8", { fatal: true })).getReader();
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    text += part.value.slice(0, Math.max(0, beginning - text.length));
    for (const [mark] of part.value.matchAll(/"|\n|[^"\r\n]+/g)) {
      if (mark === '"') quoted = !quoted;
      if (mark === "\n" && !quoted) {
        lines += filled;
        filled = false;
      } else {
        filled = true;
      }
    }
  }
  return { lines: lines + filled, text };
}

function listed(names) {
  return names.length < 2 ? names.join("") : `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`;
}

function show(facts) {
  look.replaceChildren(...Object.entries(facts).flatMap(([name, lines]) => {
    const term = document.createElement("dt");
    const text = document.createElement("dd");
    term.textContent = name;
    text.append(...lines.flatMap((line, place) => (place ? [document.createElement("br"), line] : [line])));
    return [term, text];
  }));
}

async function lookAtFile() {
  const file = input.files[0];
  certain.checked = false;
  drawn.textContent = unknown;
  look.replaceChildren();
  if (!file) return;
  const found = await read(file).catch(() => null); // another kind of file, which the server refuses in words
  if (input.files[0] !== file) return; // another one was chosen meanwhile
  if (!found) {
    show({ "The file": ["is no text in UTF-8"] });
    return;
  }
  const [names = [], ...rows] = records(found.text, 4);
  const place = names.indexOf("count");
  const labels = (cells) => cells.filter((_, number) => number !== place);
  const size = Math.max(0, found.lines - 1);
  const number = size.toLocaleString("en");
  // The first line of a file without names may have a count.
  const facts = { Rows: [number], Columns: [place < 0 ? `${names.length}; none is named count` : names.join(", ")] };
  if (place >= 0 && names.length > 1) {
    facts["First labels"] = rows.map((cells) => labels(cells).join(", "));
    drawn.textContent = `${number} ${size === 1 ? "count" : "counts"} by ${listed(labels(names))}`;
  } else if (place >= 0) {
    drawn.textContent = `${number} ${size === 1 ? "count" : "counts"}`;
  }
  show(facts);
}

input.addEventListener("change", lookAtFile);
lookAtFile(); // a file that was chosen before this script ran, or before the way back
