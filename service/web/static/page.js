// What pages do better with JavaScript: plans fold and unfold whole, and what one copies has a button for it.
"use strict";

function button(label, act) {
  const made = document.createElement("button");
  made.type = "button";
  made.className = "plain";
  made.textContent = label;
  made.addEventListener("click", () => act(made));
  return made;
}

for (const tree of document.querySelectorAll(".tree")) {
  const nodes = tree.querySelectorAll("details");
  if (nodes.length < 2) continue;
  const row = document.createElement("p");
  row.append(
    button("Unfold all", () => nodes.forEach((node) => { node.open = true; })), " ",
    button("Fold all", () => nodes.forEach((node) => { node.open = false; })),
  );
  tree.before(row);
}

// Browsers have the clipboard only over HTTPS and on the machine itself.
if (navigator.clipboard) {
  for (const text of document.querySelectorAll("main pre")) {
    text.after(button("Copy", async (pressed) => {
      await navigator.clipboard.writeText(text.innerText);
      pressed.textContent = "Copied";
    }));
  }
}
