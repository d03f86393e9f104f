// What a file of true counts has, before it is drawn: its rows, columns and first labels, and what may be a mistake. The
// browser reads the file, and shows no count. Without a script the form can do the same, but says less.
"use strict";

const input = document.getElementById("counts");
const look = document.getElementById("counts-look");
const drawn = document.getElementById("what-is-drawn");
const certain = drawn.closest("label").querySelector("input");
const unknown = drawn.textContent;
const longest = 4096; // characters of a cell that are kept

// The character that separates the columns of a table with this first line, as the server finds it.
function separatorOf(first) {
  const other = ["\t", ";"].find((mark) => first.includes(mark));
  return first.split(",").some((name) => name.replaceAll('"', "").trim() === "count") ? "," : other ?? ",";
}

// The names, the number of rows, the first rows, how many counts are below 0, and for each column whether all its cells
// are numbers that do not begin with a 0; an error if the file is no text in UTF-8. Nothing else of the file is kept.
async function read(file) {
  const found = { names: [], size: 0, first: [], below: 0, numeric: [] };
  let marks = null, separator = "", place = -1, record = [], cell = "", quoted = false, begun = "";

  function end() {
    record.push(cell.replace(/\r$/, ""));
    cell = "";
    const cells = record;
    record = [];
    if (cells.length === 1 && cells[0] === "") return;
    if (!found.names.length) {
      found.names = cells;
      place = cells.indexOf("count");
      found.numeric = cells.map(() => true);
      return;
    }
    found.size += 1;
    if (found.first.length < 3) found.first.push(cells);
    found.numeric = found.numeric.map((so_far, column) => so_far && /^\s*[+-]?(0|[1-9][\d., ]*|0[.,]\d+)\s*$/.test(cells[column] ?? ""));
    if (/^\s*-.*[1-9]/.test(cells[place] ?? "")) found.below += 1;
  }

  function take(text) {
    for (const [mark] of text.matchAll(marks)) {
      if (mark === '"') quoted = !quoted;
      else if (mark === "\n" && !quoted) end();
      else if (mark === separator && !quoted) {
        record.push(cell);
        cell = "";
      } else if (cell.length < longest) cell += mark;
    }
  }

  const reader = file.stream().pipeThrough(new TextDecoderStream("utf-8", { fatal: true })).getReader();
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    begun += part.value;
    if (!marks) {
      if (!begun.includes("\n") && begun.length < longest) continue;
      separator = separatorOf(begun.split("\n", 1)[0].trimEnd());
      marks = new RegExp(`["\n${separator}]|[^"\n${separator}]+`, "g");
    }
    take(begun);
    begun = "";
  }
  if (!marks) {
    separator = separatorOf(begun);
    marks = new RegExp(`["\n${separator}]|[^"\n${separator}]+`, "g");
    take(begun);
  }
  if (cell || record.length) end();
  return found;
}

function listed(names) {
  return names.length < 2 ? names.join("") : `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`;
}

function show(facts, warnings = []) {
  const shown = warnings.length ? { ...facts, "Look again": warnings } : facts;
  look.replaceChildren(...Object.entries(shown).flatMap(([name, lines]) => {
    const term = document.createElement("dt");
    const text = document.createElement("dd");
    term.textContent = name;
    if (lines === warnings) text.className = "bad";
    text.append(...lines.flatMap((line, place) => (place ? [document.createElement("br"), line] : [line])));
    return [term, text];
  }));
}

// What a person may have meant otherwise: the service publishes every column but that of counts as it is.
function warningsOf(found, place) {
  const numeric = found.size ? found.names.filter((_, column) => column !== place && found.numeric[column]) : [];
  const warnings = numeric.map((name) => `${name} looks like numbers: it gets no noise, and is published as it is`);
  if (found.below) {
    warnings.push(found.below === 1 ? "1 count is below 0" : `${found.below.toLocaleString("en")} counts are below 0`);
  }
  return warnings;
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
  const { names, size, first } = found;
  const place = names.indexOf("count");
  const labels = (cells) => cells.filter((_, number) => number !== place);
  const number = size.toLocaleString("en");
  // The first line of a file without names may have a count.
  const facts = { Rows: [number], Columns: [place < 0 ? `${names.length}; none is named count` : names.join(", ")] };
  if (place >= 0 && names.length > 1) {
    facts["First labels"] = first.map((cells) => labels(cells).join(", "));
    drawn.textContent = `${number} ${size === 1 ? "count" : "counts"} by ${listed(labels(names))}`;
  } else if (place >= 0) {
    drawn.textContent = `${number} ${size === 1 ? "count" : "counts"}`;
  }
  show(facts, place < 0 ? [] : warningsOf(found, place));
}

input.addEventListener("change", lookAtFile);
lookAtFile(); // a file that was chosen before this script ran, or before the way back
