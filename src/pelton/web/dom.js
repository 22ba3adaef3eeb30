// Elements of HTML and SVG made from plain values. Text is always text: nothing here turns a string into markup.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element with attributes (`text` is its text, `on` its listeners) and children. */
export function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** The same for SVG. */
export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") node.textContent = value;
    else if (name === "on") for (const [type, listener] of Object.entries(value)) node.addEventListener(type, listener);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** The element with this id, which the page is known to have. */
export function byId(id) {
  return document.getElementById(id);
}

/** Set an element's text, if it is another one: screen readers and layout are left alone otherwise. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Nobody reads faster, and every frame costs a layout. What takes longer than a part of a frame goes on in the next one.
const FRAME_MS = 80;
const BUDGET_MS = 6;

const waiting = new Map();
let isAsked = false;
let lastMs = -FRAME_MS;

/** Call `draw` in one of the next frames, once per `name` however often it was asked for. */
export function inNextFrame(name, draw) {
  waiting.set(name, draw);
  if (!isAsked) askForFrame(Math.max(0, lastMs + FRAME_MS - performance.now()));
}

function askForFrame(pauseMs) {
  isAsked = true;
  if (pauseMs > 0) setTimeout(() => requestAnimationFrame(drawWaiting), pauseMs);
  else requestAnimationFrame(drawWaiting);
}

function drawWaiting() {
  isAsked = false;
  lastMs = performance.now();
  for (const [name, draw] of [...waiting]) {
    waiting.delete(name);
    draw();
    if (performance.now() - lastMs > BUDGET_MS) break;
  }
  if (waiting.size > 0 && !isAsked) askForFrame(0);
}
