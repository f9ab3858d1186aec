// Replaces the contents of the page by the ones that the server has now. Without it the page reloads itself.
"use strict";
const REFRESH_MS = 1000;

async function refresh() {
  let text = null;
  try {
    const reply = await fetch("/", { cache: "no-store" });
    if (reply.ok) text = await reply.text();
  } catch {
    // The server is away: the note says so.
  }
  if (text === null) {
    showNote("the server of this page does not answer");
    return;
  }
  const next = new DOMParser().parseFromString(text, "text/html");
  const focused = document.activeElement?.id;
  const scrolled = new Map([...document.querySelectorAll(".scroll")].map((e) => [e.id, e.scrollLeft]));
  document.querySelector("header").replaceWith(next.querySelector("header"));
  document.querySelector("main").replaceWith(next.querySelector("main"));
  for (const [id, left] of scrolled) {
    const element = document.getElementById(id);
    if (element) element.scrollLeft = left;
  }
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

function showNote(text) {
  let note = document.getElementById("stale");
  if (!note) {
    note = document.createElement("p");
    note.id = "stale";
    note.setAttribute("role", "status");
    document.querySelector("header").append(note);
  }
  note.textContent = text;
}

async function go() {
  if (document.visibilityState === "visible") await refresh();
  setTimeout(go, REFRESH_MS);
}
setTimeout(go, REFRESH_MS);
