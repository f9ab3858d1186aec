"use strict";
// The part of the time axis that is shown, of 0 to WHOLE, the same in all panels.
const WHOLE = 1000;
const SMALLEST = 0.01;
const CHARACTER = 7;
const NARROW = 11;
let from = 0;
let to = WHOLE;

const sections = [...document.querySelectorAll("section")].map((section) => ({
  whole: Number(section.dataset.whole),
  own: Number(section.dataset.own),
  unit: section.dataset.unit,
  plot: section.querySelector(".plot"),
  shapes: section.querySelector(".shapes"),
  texts: section.querySelector(".texts"),
  height: Number(section.querySelector(".plot").getAttribute("height")),
  boxes: [...section.querySelectorAll(".launch")].map((box) => ({
    name: box.dataset.name,
    estimated: box.classList.contains("estimated"),
    x: Number(box.getAttribute("x")),
    width: Number(box.getAttribute("width")),
    top: Number(box.getAttribute("y")),
    height: Number(box.getAttribute("height")),
  })),
}));

function draw() {
  const fit = document.getElementById("fit").checked;
  for (const section of sections) {
    const factor = fit && section.own ? section.own / section.whole : 1;
    const left = from * factor;
    const width = (to - from) * factor;
    section.shapes.setAttribute("viewBox", `${left} 0 ${width} ${section.height}`);
    const scale = section.plot.clientWidth / width;
    section.texts.replaceChildren(...ticks(section, left, width, scale), ...boxes(section, left, width, scale));
  }
  document.body.classList.toggle("zoomed", to - from < WHOLE);
}

// What is written on the launches, upright where they are narrow, and hatches on those that are estimated.
function* boxes(section, left, width, scale) {
  for (const { name, estimated, x, width: own, top, height } of section.boxes) {
    const start = (Math.max(x, left) - left) * scale;
    const room = (Math.min(x + own, left + width) - left) * scale - start;
    if (room <= 0) {
      continue;
    }
    if (estimated) {
      yield svg("rect", { class: "hatch", x: start, y: top, width: room, height });
    }
    const centre = { x: start + room / 2, y: top + height / 2 };
    if (room >= name.length * CHARACTER + 4) {
      yield svg("text", centre, name);
    } else if (room >= NARROW && name.length * CHARACTER <= height + 2) {
      yield svg("text", { ...centre, class: "narrow", transform: `rotate(-90 ${centre.x} ${centre.y})` }, name);
    }
  }
}

function* ticks(section, left, width, scale) {
  const perUnit = section.whole / WHOLE;
  const step = roundStep((width * perUnit * 90) / section.plot.clientWidth);
  for (let n = Math.ceil((left * perUnit) / step); n * step <= (left + width) * perUnit * 1.0001; n++) {
    const x = ((n * step) / perUnit - left) * scale;
    const anchor = x < 12 ? "start" : x > section.plot.clientWidth - 24 ? "end" : "middle";
    yield svg("line", { x1: x, x2: x, y1: 16, y2: 21 });
    yield svg("text", { x, y: 9, class: "tick", style: `text-anchor:${anchor}` }, time(n * step, step, section.unit));
  }
}

// The smallest of 1, 2 and 5 times a power of ten that is not below a step.
function roundStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return power * [1, 2, 5, 10].find((factor) => power * factor >= least * 0.9999);
}

function time(value, step, unit) {
  if (unit !== "s") {
    return String(Number(value.toPrecision(8)));
  }
  const [factor, name] = step >= 0.1 ? [1, "s"] : step >= 1e-4 ? [1e3, "ms"] : step >= 1e-7 ? [1e6, "us"] : [1e9, "ns"];
  return `${Number((value * factor).toPrecision(8))} ${name}`;
}

function svg(kind, attributes, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", kind);
  for (const [name, value] of Object.entries(attributes)) {
    element.setAttribute(name, value);
  }
  if (text !== undefined) {
    element.textContent = text;
  }
  return element;
}

let drawing = false;
function show(newFrom, newTo) {
  const width = Math.min(WHOLE, Math.max(SMALLEST, newTo - newFrom));
  from = Math.min(WHOLE - width, Math.max(0, newFrom));
  to = from + width;
  if (!drawing) {
    drawing = true;
    requestAnimationFrame(() => {
      drawing = false;
      draw();
    });
  }
}

// Zooms by a factor around a point, in parts of the width.
function zoom(factor, around = 0.5) {
  const centre = from + (to - from) * around;
  const width = Math.min(WHOLE, Math.max(SMALLEST, (to - from) * factor));
  show(centre - width * around, centre + width * (1 - around));
}

function move(part) {
  const distance = (to - from) * part;
  show(from + distance, to + distance);
}

for (const { plot } of sections) {
  plot.addEventListener(
    "wheel",
    (event) => {
      if (event.ctrlKey || event.metaKey) {
        event.preventDefault();
        zoom(1.0015 ** event.deltaY, (event.clientX - plot.getBoundingClientRect().left) / plot.clientWidth);
      } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        event.preventDefault();
        move((event.deltaX || event.deltaY) / plot.clientWidth);
      }
    },
    { passive: false },
  );
  plot.addEventListener("pointerdown", (event) => {
    let last = event.clientX;
    const drag = (moved) => {
      move((last - moved.clientX) / plot.clientWidth);
      last = moved.clientX;
    };
    const drop = () => {
      plot.classList.remove("moving");
      window.removeEventListener("pointermove", drag);
    };
    plot.classList.add("moving");
    window.addEventListener("pointermove", drag);
    window.addEventListener("pointerup", drop, { once: true });
    window.addEventListener("pointercancel", drop, { once: true });
  });
  plot.addEventListener("dblclick", () => show(0, WHOLE));
}

// The transfers of the launch under the pointer stand out, and the others step back.
let under;
function emphasise(shown) {
  const plot = shown?.closest(".plot");
  const event = shown?.dataset.event;
  if (under !== shown) {
    under = shown;
    for (const line of document.querySelectorAll(".near")) {
      line.classList.remove("near");
      line.closest(".plot").classList.remove("aside");
    }
    for (const line of event ? plot.querySelectorAll(`[data-ends~="${event}"]`) : []) {
      line.classList.add("near");
      plot.classList.add("aside");
    }
  }
}

const tip = document.getElementById("tip");
document.addEventListener("pointermove", (event) => {
  const shown = event.target.closest?.("[data-tip]");
  tip.hidden = !shown;
  emphasise(shown);
  if (shown) {
    tip.textContent = shown.dataset.tip;
    tip.style.left = `${Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${Math.min(event.clientY + 14, window.innerHeight - tip.offsetHeight - 8)}px`;
  }
});

document.addEventListener("keydown", (event) => {
  const actions = {
    "+": () => zoom(0.8),
    "=": () => zoom(0.8),
    "-": () => zoom(1.25),
    0: () => show(0, WHOLE),
    ArrowLeft: () => move(-0.1),
    ArrowRight: () => move(0.1),
  };
  if (event.key in actions && !event.ctrlKey && !event.metaKey && !event.altKey) {
    actions[event.key]();
  }
});
document.getElementById("in").addEventListener("click", () => zoom(0.6));
document.getElementById("out").addEventListener("click", () => zoom(1 / 0.6));
document.getElementById("all").addEventListener("click", () => show(0, WHOLE));
document.getElementById("fit").addEventListener("change", draw);
document.getElementById("sends").addEventListener("change", (event) => {
  document.body.classList.toggle("no-sends", !event.target.checked);
});
window.addEventListener("resize", draw);
draw();
