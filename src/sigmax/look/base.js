"use strict";
// What all pages share: nodes, axes, light and dark. Text is only ever set as text, never as markup.

// ---------------------------------------------------------------- nodes

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}
const html = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

function table(header, rows) {
  const head = html("tr", {}, ...header.map((cell) => html("th", { scope: "col" }, cell)));
  const body = rows.map(([first, ...rest]) =>
    html("tr", {}, html("th", { scope: "row" }, first), ...rest.map((cell) => html("td", {}, String(cell)))),
  );
  return html("table", { class: "numbers" }, html("thead", {}, head), html("tbody", {}, ...body));
}

// ---------------------------------------------------------------- axes

// The smallest of 1, 2, 5, 10, … that cuts the span into at most so many parts.
function roundStep(span, parts) {
  const rough = (span > 0 ? span : 1) / parts;
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough);
}

const tickText = (value, step) => value.toFixed(Math.max(0, -Math.floor(Math.log10(step) + 1e-9)));

// A drawing of this size with two axes; x and y are {from, to, unit, label}, `unit` making a plain number of a value.
function makePlot(width, height, x, y) {
  const left = 58, right = width - 18, top = 10, bottom = height - 44;
  const toX = (value) => left + ((right - left) * (value - x.from)) / (x.to - x.from);
  const toY = (value) => bottom - ((bottom - top) * (value - y.from)) / (y.to - y.from);
  const root = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
  const line = (x1, y1, x2, y2, name) => root.append(svg("line", { x1, y1, x2, y2, class: name }));
  const text = (at, value, attributes) => root.append(svg("text", { x: at[0], y: at[1], ...attributes }, value));
  for (const [axis, place] of [[x, toX], [y, toY]]) {
    const step = Math.max(roundStep(axis.to - axis.from, axis === x ? Math.max(3, Math.floor(width / 75)) : 5), axis.least ?? 0);
    for (let value = Math.ceil(axis.from / step) * step; value <= axis.to + step / 1e6; value += step) {
      const at = place(value), label = tickText(value / axis.unit, step / axis.unit);
      if (axis === x) {
        line(at, bottom, at, bottom + 5, "axis");
        text([at, bottom + 20], label, { "text-anchor": "middle" });
      } else {
        line(left, at, right, at, "grid");
        text([left - 8, at + 4], label, { "text-anchor": "end" });
      }
    }
  }
  line(left, bottom, right, bottom, "axis");
  text([(left + right) / 2, height - 6], x.label, { "text-anchor": "middle" });
  text([0, 0], y.label, { "text-anchor": "middle", transform: `translate(13 ${(top + bottom) / 2}) rotate(-90)` });
  return { root, toX, toY, left, right, top, bottom };
}

// ---------------------------------------------------------------- light and dark

const theme = document.getElementById("theme");
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const showTheme = (isDark) => theme.setAttribute("aria-pressed", isDark);
theme.addEventListener("click", () => {
  const isDark = theme.getAttribute("aria-pressed") !== "true";
  document.documentElement.style.colorScheme = isDark ? "dark" : "light";
  showTheme(isDark);
});
prefersDark.addEventListener("change", () => {
  document.documentElement.style.colorScheme = "";
  showTheme(prefersDark.matches);
});
showTheme(prefersDark.matches);
