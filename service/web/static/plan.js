// The planner without a round trip for each row. Everything here the page can do without it, too.
"use strict";

const form = document.getElementById("planner");
const rows = document.getElementById("rows");
const template = document.getElementById("row");
const most = 100;
let made = 0;

function number() {
  [...rows.children].forEach((row, place) => {
    row.querySelector(".label").textContent = place + 1;
    row.querySelector(".remove").value = `remove-${place}`;
    row.querySelector(".remove .hidden").textContent = ` row ${place + 1}`;
  });
}

document.getElementById("add").addEventListener("click", (event) => {
  event.preventDefault();
  if (rows.children.length >= most) {
    return;
  }
  const row = template.content.firstElementChild.cloneNode(true);
  made += 1;
  for (const input of row.querySelectorAll("input")) {
    const id = input.id.replace("-new", `-new${made}`);
    row.querySelector(`label[for="${input.id}"]`).htmlFor = id;
    input.id = id;
  }
  rows.append(row);
  number();
  row.querySelector("input").focus();
});

rows.addEventListener("click", (event) => {
  const button = event.target.closest(".remove");
  if (button === null) {
    return;
  }
  event.preventDefault();
  const row = button.closest("li");
  const next = row.nextElementSibling ?? row.previousElementSibling;
  row.remove();
  number();
  (next?.querySelector("input") ?? document.getElementById("add")).focus();
});

document.getElementById("account").addEventListener("change", async (event) => {
  const name = event.target.value;
  const answer = await fetch(`/plan/account?account=${encodeURIComponent(name)}`, { headers: { Accept: "text/html" } });
  if (answer.ok && !answer.redirected && event.target.value === name) {
    document.getElementById("chosen").innerHTML = await answer.text();
  }
});

// A second press while the first is under way would only be answered with the same release.
form.addEventListener("submit", (event) => {
  if (form.dataset.sent === "yes") {
    event.preventDefault();
  }
  form.dataset.sent = "yes";
  form.setAttribute("aria-busy", "true");
});
addEventListener("pageshow", () => {
  delete form.dataset.sent;
  form.removeAttribute("aria-busy");
});
