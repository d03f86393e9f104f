// A preview is of the form as it was sent. While the form says something else, what the preview states cannot be drawn.
"use strict";

const asked = document.getElementById("asked");
const outdated = document.getElementById("outdated");
const button = outdated.closest("form").querySelector("button[type=submit]");

function isChanged(field) {
  return field.options
    ? [...field.options].some((option) => option.selected !== option.defaultSelected)
    : "defaultValue" in field && field.type !== "hidden" && field.value !== field.defaultValue;
}

function compare() {
  const changed = [...asked.elements].some(isChanged);
  button.disabled = changed;
  outdated.textContent = changed ? "The form above says something else now: preview it again." : "";
}

asked.addEventListener("input", compare);
addEventListener("pageshow", compare); // browsers keep what was typed on their way back
