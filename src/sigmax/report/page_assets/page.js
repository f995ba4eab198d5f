// Draws what the report wrote beside it; asks nothing of any network. Radii and gains are whole thousandths,
// already rounded down; sigmas are whole millionths. Text is only ever set as text, never as markup.

const report = JSON.parse(document.getElementById("data").textContent);
const filters = document.getElementById("filters");
const gallery = document.getElementById("gallery");
const PER_PAGE = 24;
const DASHES = ["", "8 4", "2 3", "10 3 2 3"];
const MANY = 10;  // curves: more are asked for by their names

// ---------------------------------------------------------------- numbers as text

const thousandths = (whole) => (whole / 1000).toFixed(3);
const share = (count, all) => thousandths(all ? Math.floor((2000 * count + all) / (2 * all)) : 0);
const sigmaText = (millionths) => (millionths === null ? "not said" : thousandths(Math.floor((millionths + 500) / 1000)));
const signed = (whole) => (whole > 0 ? "+" : whole < 0 ? "−" : "") + thousandths(Math.abs(whole));
const ruleText = (rule) => ({ "": "not said", point: "no memory" })[rule] ?? rule;
const counted = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;

// ---------------------------------------------------------------- the view, and the address that restores it

const firstRun = Math.max(0, report.runs.findIndex((run) => run.fixed !== null));
const CHOICES = ["class", "result", "change", "rule", "sort"];
const view = {};

function resetView() {
  Object.assign(view, { run: firstRun, sigma: null, point: null, page: 0, hidden: new Set() });
  for (const name of CHOICES) view[name] = "";
}

// Anything in the address that this report does not know is as good as not there.
function readAddress() {
  const said = new URLSearchParams(location.hash.slice(1));
  const pair = (name) => (/^-?\d+,-?\d+$/.test(said.get(name) ?? "") ? said.get(name).split(",").map(Number) : null);
  resetView();
  if (/^\d+$/.test(said.get("run") ?? "") && report.runs[said.get("run")]) view.run = Number(said.get("run"));
  for (const name of CHOICES) view[name] = said.get(name) ?? "";
  view.sigma = pair("sigma");
  view.point = pair("point");
  view.page = Math.max(0, (parseInt(said.get("page"), 10) || 1) - 1);
  view.hidden = new Set((said.get("hide") ?? "").split(",").filter(Boolean));
}

function writeAddress() {
  const said = new URLSearchParams();
  if (view.run !== firstRun) said.set("run", view.run);
  for (const name of CHOICES) if (view[name]) said.set(name, view[name]);
  if (view.sigma) said.set("sigma", view.sigma);
  if (view.point) said.set("point", view.point);
  if (view.page) said.set("page", view.page + 1);
  if (view.hidden.size) said.set("hide", [...view.hidden].join(","));
  const hash = said.size ? "#" + said.toString().replaceAll("%2C", ",") : "";
  history.replaceState(null, "", location.pathname + location.search + hash);
}

// ---------------------------------------------------------------- curves of certified accuracy

const charts = report.charts.map((chart, number) => {
  const lines = chart.runs.map((run, i) => ({
    key: String(run),
    name: report.runs[run].name,
    kind: report.runs[run].kind,
    all: report.runs[run].rows,
    counts: chart.counts[i],
    band: chart.bands?.[i],
    colour: `var(--line-${chart.styles[i][0]})`,  // as in the figures
    dash: DASHES[(chart.styles[i][0] + chart.styles[i][1]) % DASHES.length],  // they differ by more than hue
  }));
  if (lines.length > 1) {
    const best = chart.radii.map((_, i) => Math.max(...lines.map((line) => line.counts[i])));
    lines.push({ key: `envelope${number}`, name: "envelope", kind: "best of these", all: lines[0].all, counts: best });
  }
  const host = document.querySelector(`[data-chart="${number}"]`);
  const place = html("div", {
    class: "plot", role: "slider", tabindex: "0", "aria-label": `l${chart.norm} radius`,
    "aria-valuemin": "0", "aria-valuemax": String(chart.radii.at(-1) / 1000),
  });
  const at = html("output");
  const list = html("ul");
  for (const line of lines) {
    line.value = html("span", { class: "value" });
    const stroke = line.colour ? `stroke: ${line.colour}` : "";
    const sample = svg("svg", { width: 32, height: 8, "aria-hidden": "true" },
      svg("path", { d: "M0 4H32", class: line.colour ? "curve" : "curve envelope", "stroke-dasharray": line.dash ?? "" }));
    sample.firstChild.style.cssText = stroke;
    line.button = html("button", { type: "button" }, sample,
      html("span", { class: "name" }, line.name, " ", html("small", {}, `(${line.kind})`)), line.value);
    line.button.addEventListener("click", () => {
      view.hidden.has(line.key) ? view.hidden.delete(line.key) : view.hidden.add(line.key);
      updateCurves();
    });
    list.append(html("li", {}, line.button));
  }
  const showAll = html("button", { type: "button" }, "Show all");
  const hideAll = html("button", { type: "button" }, "Hide all");
  const words = html("input", { type: "search", placeholder: "such as 0.25 halving" });
  const show = (isShown) => {
    for (const line of lines) isShown(line) ? view.hidden.delete(line.key) : view.hidden.add(line.key);
    updateCurves();
  };
  showAll.addEventListener("click", () => { words.value = ""; show(() => true); });
  hideAll.addEventListener("click", () => { words.value = ""; show(() => false); });
  words.addEventListener("input", () => {
    const asked = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    show((line) => !asked.length || (line.colour && asked.every((word) => line.name.toLowerCase().includes(word))));
  });
  const search = lines.length > MANY ? [html("label", {}, "Runs with these words in their name", words)] : [];
  host.append(place, html("div", { class: "legend" }, ...search,
    html("p", { class: "at" }, html("span", {}, "at radius ", at), html("span", {}, "certified")),
    list, html("div", { class: "all" }, showAll, hideAll)));
  const made = { ...chart, lines, place, at, index: 0 };
  place.addEventListener("pointermove", (event) => {
    const { left, right } = made.plot, bounds = place.getBoundingClientRect();
    moveCrosshair(made, Math.round(((chart.radii.length - 1) * (event.clientX - bounds.left - left)) / (right - left)));
  });
  place.addEventListener("keydown", (event) => {
    const last = chart.radii.length - 1;
    const to = { ArrowLeft: made.index - 1, ArrowDown: made.index - 1, ArrowRight: made.index + 1, ArrowUp: made.index + 1,
      PageDown: made.index - 10, PageUp: made.index + 10, Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    moveCrosshair(made, to);
  });
  return made;
});

function drawCurves(chart) {
  const width = Math.max(260, chart.place.clientWidth), height = Math.min(420, Math.max(260, width * 0.55));
  const to = chart.radii.at(-1);
  const plot = makePlot(width, height,
    { from: 0, to, unit: 1000, label: `l${chart.norm} radius (input units)` }, { from: 0, to: 1, unit: 1, label: "certified accuracy", least: 0.2 });
  chart.plot = plot;
  for (const line of chart.lines.filter((line) => line.band)) {
    const step = (ends, i) => `V${plot.toY(ends[i] / 1000).toFixed(1)}H${plot.toX(chart.radii[i]).toFixed(1)}`;
    const [low, high] = line.band, places = [...chart.radii.keys()];
    const back = places.slice(1).reverse().map((i) => `V${plot.toY(low[i] / 1000).toFixed(1)}H${plot.toX(chart.radii[i - 1]).toFixed(1)}`);
    line.area = svg("path", { class: "band", d: `M${plot.left} ${plot.toY(high[0] / 1000).toFixed(1)}${places.slice(1).map((i) => step(high, i)).join("")}${back.join("")}Z` });
    line.area.style.fill = line.colour;
    plot.root.append(line.area);
  }
  for (const line of [...chart.lines].reverse()) {
    const steps = chart.radii.map((radius, i) => {
      const y = plot.toY(line.all ? line.counts[i] / line.all : 0).toFixed(1);
      return i ? `V${y}H${plot.toX(radius).toFixed(1)}` : `M${plot.toX(radius).toFixed(1)} ${y}`;
    });
    line.path = svg("path", { d: steps.join(""), class: line.colour ? "curve" : "curve envelope", "stroke-dasharray": line.dash ?? "" });
    line.dot = svg("circle", { r: 4 });
    line.path.style.stroke = line.colour ?? "";
    line.dot.style.fill = line.colour ?? "var(--ink)";
    plot.root.append(line.path, line.dot);
  }
  chart.crosshair = svg("line", { y1: plot.top, y2: plot.bottom, class: "crosshair" });
  plot.root.append(chart.crosshair);
  chart.place.replaceChildren(plot.root);
  moveCrosshair(chart, chart.index);
}

function moveCrosshair(chart, index) {
  chart.index = Math.min(chart.radii.length - 1, Math.max(0, index));
  const radius = chart.radii[chart.index], x = chart.plot.toX(radius);
  chart.crosshair.setAttribute("x1", x);
  chart.crosshair.setAttribute("x2", x);
  chart.at.value = thousandths(radius);
  for (const line of chart.lines) {
    const count = line.counts[chart.index];
    line.value.textContent = share(count, line.all);
    line.dot.setAttribute("cx", x);
    line.dot.setAttribute("cy", chart.plot.toY(line.all ? count / line.all : 0));
  }
  const shown = chart.lines.filter((line) => !view.hidden.has(line.key));
  chart.place.setAttribute("aria-valuenow", radius / 1000);
  chart.place.setAttribute("aria-valuetext",
    `radius ${thousandths(radius)}: ` + shown.map((line) => `${line.name} ${line.value.textContent}`).join(", "));
}

function updateCurves() {
  for (const chart of charts) {
    for (const line of chart.lines) {
      const isHidden = view.hidden.has(line.key);
      line.button.setAttribute("aria-pressed", !isHidden);
      line.path.classList.toggle("is-hidden", isHidden);
      line.area?.classList.toggle("is-hidden", isHidden);
      line.dot.classList.toggle("is-hidden", isHidden);
    }
    moveCrosshair(chart, chart.index);
  }
  writeAddress();
}

// ---------------------------------------------------------------- one input of the chosen run

const chosen = () => report.runs[view.run];
const inputsOf = (run) => report.inputs[run.inputs];
const className = (run, label) => inputsOf(run).classes?.[label] ?? String(label);
const isCorrect = (run, row) => run.predict[row] === inputsOf(run).label[row];
const countedRadius = (run, row) => (isCorrect(run, row) ? run.radius[row] : 0);
const ruleOf = (run, row) => run.rules[run.rule ? run.rule[row] : 0];
const resultOf = (run, row) => (run.predict[row] < 0 ? "abstained" : isCorrect(run, row) ? "correct" : "wrong");
const pointOf = (run, row) => [countedRadius(report.runs[run.fixed], row), countedRadius(run, row)];
const isWithin = (value, [low, high]) => value !== null && value >= low && value < high;

const PASSES = {
  class: (run, row) => String(inputsOf(run).label[row]) === view.class,
  result: (run, row) => resultOf(run, row) === view.result,
  change: (run, row) => run.change !== null && String(run.change[row]) === view.change,
  rule: (run, row) => ruleText(ruleOf(run, row)) === view.rule,
  sigma: (run, row) => run.sigma !== null && isWithin(run.sigma[row], view.sigma),
  point: (run, row) => run.fixed !== null && String(pointOf(run, row)) === String(view.point),
};

// The rows that pass every filter in force, except one that a chart leaves to its reader to choose.
function passing(run, except) {
  const inForce = Object.keys(PASSES).filter((name) => view[name] && name !== except).map((name) => PASSES[name]);
  return [...run.predict.keys()].filter((row) => inForce.every((passes) => passes(run, row)));
}

// ---------------------------------------------------------------- histogram of sigma*

function binsOf(run) {
  const known = run.sigma?.filter((sigma) => sigma !== null) ?? [];
  if (!run.is_per_input || !known.length) return [];
  const low = known.reduce((a, b) => Math.min(a, b)), high = known.reduce((a, b) => Math.max(a, b));
  const step = roundStep(Math.max(high - low, 36_000), 36);  // in millionths: at least a thousandth of sigma
  const bins = [];
  for (let from = Math.floor(low / step) * step; from <= high; from += step) bins.push([from, from + step]);
  return bins;
}

function drawHistogram() {
  const run = chosen(), part = document.getElementById("histogram"), place = part.querySelector(".plot");
  const bins = binsOf(run);
  part.hidden = !bins.length;
  if (!bins.length) return;
  const counts = bins.map((bin) => ({ bin, all: 0, gained: 0 }));
  for (const row of passing(run, "sigma")) {
    const bar = run.sigma[row] === null ? null : counts[Math.floor((run.sigma[row] - bins[0][0]) / (bins[0][1] - bins[0][0]))];
    if (!bar) continue;
    bar.all += 1;
    if (run.change?.[row] === 1) bar.gained += 1;
  }
  const width = Math.max(260, place.clientWidth), height = 320;
  const most = 1.04 * Math.max(1, ...counts.map((bar) => bar.all));
  const plot = makePlot(width, height, { from: bins[0][0], to: bins.at(-1)[1], unit: 1e6, label: "sigma*" },
    { from: 0, to: most, unit: 1, label: "inputs", least: 1 });
  const focused = place.contains(document.activeElement) ? document.activeElement.dataset.bin : null;
  for (const { bin, all, gained } of counts) {
    const x = plot.toX(bin[0]) + 0.5, wide = plot.toX(bin[1]) - plot.toX(bin[0]) - 1;
    const isChosen = String(view.sigma) === String(bin);
    if (!all && !isChosen) continue;
    const rect = (from, to, name) => svg("rect", { x, width: wide, y: plot.toY(to), height: plot.toY(from) - plot.toY(to), class: name });
    const bar = svg("g", { class: "bar", role: "button", tabindex: "0", "aria-pressed": isChosen, "data-bin": String(bin),
      "aria-label": `sigma* from ${sigmaText(bin[0])} to ${sigmaText(bin[1])}: ${counted(all, "input")}` + (run.change ? `, ${gained} gained` : "") },
      rect(0, most, "hit"), rect(0, gained, "gained"), rect(gained, all, "rest"));
    const choose = () => change({ sigma: isChosen ? null : bin });
    bar.addEventListener("click", choose);
    bar.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      choose();
    });
    plot.root.append(bar);
  }
  plot.root.removeAttribute("aria-hidden");
  plot.root.setAttribute("role", "group");
  plot.root.setAttribute("aria-label", "Histogram of sigma*");
  plot.root.classList.toggle("has-choice", view.sigma !== null);
  const key = run.change && html("div", { class: "key" },
    html("span", { class: "gained" }, "radius gained over the baseline"), html("span", { class: "rest pale" }, "not gained"));
  place.replaceChildren(plot.root, ...(key ? [key] : []));
  if (focused) [...place.querySelectorAll(".bar")].find((bar) => bar.dataset.bin === focused)?.focus();
  part.querySelector("details > div").replaceChildren(table(
    ["sigma* from", "to", "inputs", ...(run.change ? ["gained"] : [])],
    counts.map(({ bin, all, gained }) => [sigmaText(bin[0]), sigmaText(bin[1]), all, ...(run.change ? [gained] : [])])));
}

// ---------------------------------------------------------------- radius against that in the baseline

const scatter = { place: document.querySelector("#scatter .plot"), spots: [], index: -1 };
scatter.place.setAttribute("tabindex", "0");
scatter.place.setAttribute("role", "application");

const firstWord = (kind) => kind.split(",")[0];  // point or settled: an axis has no room for more

// A few paths of many dots, not many nodes: ten thousand inputs stay quick.
function drawScatter() {
  const run = chosen(), part = document.getElementById("scatter");
  part.hidden = run.fixed === null;
  if (part.hidden) return;
  const shown = new Set(passing(run, "point"));
  const dots = { other: new Map(), unchanged: new Map(), lost: new Map(), gained: new Map() };
  for (const row of run.predict.keys()) {
    const point = pointOf(run, row);
    const name = !shown.has(row) ? "other" : { 1: "gained", 0: "unchanged", "-1": "lost" }[run.change[row]];
    const spot = dots[name].get(String(point)) ?? { point, rows: [] };
    spot.rows.push(row);
    dots[name].set(String(point), spot);
  }
  const width = Math.max(260, scatter.place.clientWidth), height = 320;
  const all = Object.values(dots).flatMap((map) => [...map.values()]);
  const [across, up] = [0, 1].map((place) => 1.04 * all.reduce((most, { point }) => Math.max(most, point[place]), 1));
  const plot = makePlot(width, height, { from: 0, to: across, unit: 1000, label: `radius in the baseline (${firstWord(report.runs[run.fixed].kind)})` },
    { from: 0, to: up, unit: 1000, label: `radius in this run (${firstWord(run.kind)})` });
  const reach = Math.min(across, up);
  plot.root.append(svg("line", { x1: plot.toX(0), y1: plot.toY(0), x2: plot.toX(reach), y2: plot.toY(reach), class: "diagonal" }));
  for (const [name, map] of Object.entries(dots)) {
    const d = [...map.values()].map(({ point }) => `M${plot.toX(point[0]).toFixed(1)} ${plot.toY(point[1]).toFixed(1)}h0`);
    plot.root.append(svg("path", { class: `dots ${name}`, d: d.join("") }));
  }
  const held = view.point ?? scatter.spots?.[scatter.index]?.point;  // the reader's place
  const spots = new Map();
  for (const name of ["unchanged", "lost", "gained"]) for (const [key, { point, rows }] of dots[name]) {
    spots.set(key, { point, rows: [...(spots.get(key)?.rows ?? []), ...rows] });
  }
  scatter.spots = [...spots.values()].sort((a, b) => a.point[0] - b.point[0] || a.point[1] - b.point[1]);
  scatter.index = held ? scatter.spots.findIndex((spot) => String(spot.point) === String(held)) : -1;
  scatter.plot = plot;
  scatter.cursor = svg("circle", { r: 7, class: "cursor" });
  plot.root.append(scatter.cursor);
  const key = html("div", { class: "key" }, html("span", { class: "gained" }, "gained"), html("span", { class: "lost" }, "lost"),
    html("span", { class: "rest" }, "unchanged"));
  scatter.place.replaceChildren(plot.root, key);
  scatter.place.setAttribute("aria-label", `Scatter plot of ${counted(shown.size, "input")}: radius in the baseline, ${report.runs[run.fixed].name}, and in ${run.name}`);
  moveCursor(scatter.index);
  drawScatterTable(part, run, shown);
}

function drawScatterTable(part, run, shown) {
  const radii = [...shown].map((row) => pointOf(run, row)[0]);
  const step = roundStep(radii.reduce((a, b) => Math.max(a, b), 1), 8);
  const bands = new Map();
  for (const row of shown) {
    const band = Math.floor(pointOf(run, row)[0] / step);
    const counts = bands.get(band) ?? { "-1": 0, 0: 0, 1: 0 };
    counts[run.change[row]] += 1;
    bands.set(band, counts);
  }
  const rows = [...bands].sort(([a], [b]) => a - b).map(([band, counts]) =>
    [`${thousandths(band * step)} to ${thousandths((band + 1) * step)}`, counts[1], counts[-1], counts[0]]);
  part.querySelector("details > div").replaceChildren(table(["radius in the baseline", "gained", "lost", "unchanged"], rows));
}

function moveCursor(index) {
  const spot = scatter.spots[index];
  const reading = document.querySelector("#scatter .reading");
  scatter.index = index;
  scatter.cursor.classList.toggle("is-hidden", !spot);
  reading.textContent = "";
  if (!spot) return;
  scatter.cursor.setAttribute("cx", scatter.plot.toX(spot.point[0]));
  scatter.cursor.setAttribute("cy", scatter.plot.toY(spot.point[1]));
  const who = spot.rows.length === 1 ? `Input ${inputsOf(chosen()).idx[spot.rows[0]]}` : counted(spot.rows.length, "input");
  reading.textContent = `${who}: ${thousandths(spot.point[0])} in the baseline, ${thousandths(spot.point[1])} in this run`;
}

function nearestSpot(event) {
  const bounds = scatter.place.getBoundingClientRect();
  const x = event.clientX - bounds.left, y = event.clientY - bounds.top;
  let best = -1, least = 15 ** 2;
  scatter.spots.forEach(({ point }, i) => {
    const distance = (scatter.plot.toX(point[0]) - x) ** 2 + (scatter.plot.toY(point[1]) - y) ** 2;
    if (distance < least) [best, least] = [i, distance];
  });
  return best;
}

function choosePoint(index) {
  const point = scatter.spots[index]?.point;
  if (point) change({ point: String(point) === String(view.point) ? null : point });
}

scatter.place.addEventListener("pointermove", (event) => {
  const index = nearestSpot(event);
  if (index >= 0) moveCursor(index);
});
scatter.place.addEventListener("click", (event) => choosePoint(nearestSpot(event)));
scatter.place.addEventListener("keydown", (event) => {
  const last = scatter.spots.length - 1;
  const to = { ArrowLeft: scatter.index - 1, ArrowDown: scatter.index - 1, ArrowRight: scatter.index + 1, ArrowUp: scatter.index + 1,
    Home: 0, End: last }[event.key];
  if (event.key === "Enter" || event.key === " ") choosePoint(scatter.index);
  else if (to !== undefined) moveCursor(Math.min(last, Math.max(0, to)));
  else return;
  event.preventDefault();
});

// ---------------------------------------------------------------- the gallery

const cells = new Map(report.sprite?.inputs.map((idx, cell) => [idx, cell]));
const cellOf = (run, row) => (inputsOf(run).is_pictured ? cells.get(inputsOf(run).idx[row]) : undefined);

const ORDERS = {
  gain: (run) => (a, b) => run.gain[b] - run.gain[a],
  loss: (run) => (a, b) => run.gain[a] - run.gain[b],
  radius: (run) => (a, b) => run.radius[b] - run.radius[a],
  sigma: (run) => (a, b) => run.sigma[b] - run.sigma[a],
};

function sorted(run, rows) {
  const isKnown = { gain: run.gain, loss: run.gain, radius: run.radius, sigma: run.sigma }[view.sort];
  if (isKnown) return rows.sort(ORDERS[view.sort](run));
  // Where only some inputs have a picture, they come first.
  const hasNone = (row) => (cellOf(run, row) === undefined ? 1 : 0);
  return report.sprite?.is_partial ? rows.sort((a, b) => hasNone(a) - hasNone(b) || a - b) : rows;
}

const SIDE = 84;  // of a picture, in pixels of the page

function drawPicture(run, row) {
  const cell = cellOf(run, row);
  if (cell === undefined) return [];
  const { columns, rows, width, height } = report.sprite, idx = inputsOf(run).idx[row];
  const scale = SIDE / Math.max(width, height), across = scale * width, down = scale * height;
  const picture = html("div", { class: "picture", role: "img", "aria-label": `input ${idx}` });
  Object.assign(picture.style, {
    width: `${across}px`,
    height: `${down}px`,
    backgroundSize: `${columns * across}px ${rows * down}px`,
    backgroundPosition: `${-(cell % columns) * across}px ${-Math.floor(cell / columns) * down}px`,
  });
  const views = [[picture, "clean"]];
  const chosenSigma = run.sigma?.[row] ?? null;
  for (const [sigma, name] of [[run.sigma0, "sigma0"], [run.is_per_input ? chosenSigma : null, "sigma*"]]) {
    if (sigma === null || !(run.noise in NOISES)) continue;  // one's own noise only its Python can draw
    const noisy = html("canvas", { class: "noisy picture", width, height, role: "img", "aria-label": `input ${idx} under noise at ${name}` });
    Object.assign(noisy.style, { width: `${across}px`, height: `${down}px`, backgroundImage: "none" });
    sheet.then((image) => drawNoise(noisy, image, cell, sigma / 1e6, run.noise, idx));
    views.push([noisy, `${name} ${sigmaText(sigma)}`]);
  }
  return [html("div", { class: "views" }, ...views.map(([view, name]) => html("figure", {}, view, html("figcaption", {}, name))))];
}

// All pictures in one, as the style sheet has them.
const sheet = new Promise((resolve) => {
  const probe = html("div", { class: "picture", hidden: "" });
  document.body.append(probe);
  const image = new Image();
  image.addEventListener("load", () => resolve(image));
  image.src = getComputedStyle(probe).backgroundImage.slice(5, -2);
  probe.remove();
});

// The same numbers in [0, 1) at every visit (mulberry32), so that views at two sigmas differ by sigma alone.
function numbersFrom(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

const uniform = (next) => 2 * next() - 1;
const gaussian = (next) => Math.sqrt(-2 * Math.log(1 - next())) * Math.cos(2 * Math.PI * next());
const NOISES = { uniform, gaussian, l1: uniform, l2: gaussian };

function drawNoise(canvas, image, cell, sigma, noise, seed) {
  const { columns, width, height, is_grey } = report.sprite, pen = canvas.getContext("2d", { willReadFrequently: true });
  pen.drawImage(image, (cell % columns) * width, Math.floor(cell / columns) * height, width, height, 0, 0, width, height);
  const pixels = pen.getImageData(0, 0, width, height), next = numbersFrom(seed + 1);
  const draw = () => NOISES[noise](next);
  for (let at = 0; at < pixels.data.length; at += 4) {
    const grey = draw();
    for (const channel of [0, 1, 2]) pixels.data[at + channel] += 255 * sigma * (is_grey || !channel ? grey : draw());
  }
  pen.putImageData(pixels, 0, 0);
}

function drawCard(run, row) {
  const result = resultOf(run, row), idx = inputsOf(run).idx[row];
  const answer = (label) => (label < 0 ? "abstained" : className(run, label));
  const point = (run.point_predict ?? run.predict)[row];
  const facts = [
    ["label", className(run, inputsOf(run).label[row])],
    ["answer", answer(run.predict[row])],
    ...(point !== run.predict[row] ? [["point answer", answer(point)]] : []),
    ["radius", thousandths(run.radius[row])],
    ["sigma" + (run.is_per_input ? "*" : ""), sigmaText(run.sigma?.[row] ?? null)],
    ...(run.gain ? [["gain", signed(run.gain[row])]] : []),
    ["point radius", thousandths((run.point_radius ?? run.radius)[row])],
    ["rule", ruleText(ruleOf(run, row))],
  ];
  const mark = { correct: "✓ correct", wrong: "✗ wrong", abstained: "– abstained" }[result];
  return html("li", { "data-input": idx }, ...drawPicture(run, row), html("div", { class: "facts" },
    html("h4", {}, `Input ${idx}`, html("small", {}, `${mark}; certificate: ${run.kind}`)),
    html("dl", {}, ...facts.flatMap(([name, value]) => [html("dt", {}, name), html("dd", {}, value)]))));
}

function drawGallery() {
  const run = chosen(), rows = sorted(run, passing(run));
  const pages = Math.max(1, Math.ceil(rows.length / PER_PAGE));
  view.page = Math.min(view.page, pages - 1);
  const start = view.page * PER_PAGE;
  const none = html("li", { class: "empty" }, "No input passes these filters. Reset shows all again.");
  gallery.replaceChildren(...(rows.length ? rows.slice(start, start + PER_PAGE).map((row) => drawCard(run, row)) : [none]));
  document.getElementById("noise-hint").hidden = !gallery.querySelector(".noisy");
  document.getElementById("count").textContent = `${rows.length.toLocaleString("en")} of ${counted(run.predict.length, "input")}`;
  const turn = document.getElementById("pages");
  turn.hidden = pages === 1;
  turn.querySelector("span").textContent = `page ${view.page + 1} of ${pages}`;
  turn.querySelector("[name=back]").disabled = view.page === 0;
  turn.querySelector("[name=next]").disabled = view.page === pages - 1;
  const chip = (name, text) => {
    const button = html("button", { type: "button", "aria-label": `Remove: ${text}` }, `${text} ✕`);
    button.addEventListener("click", () => {
      change({ [name]: null });
      document.getElementById("count").focus();  // the button is gone, and must not take the reader's place with it
    });
    return button;
  };
  document.getElementById("chips").replaceChildren(
    ...(view.sigma ? [chip("sigma", `sigma* ${sigmaText(view.sigma[0])} to ${sigmaText(view.sigma[1])}`)] : []),
    ...(view.point ? [chip("point", `radii ${view.point.map(thousandths).join(" and ")}`)] : []));
}

// ---------------------------------------------------------------- filters

const SIGMA_TEXT = { true: "per-input sigma", false: "one sigma", null: "sigma not said" };

function fillFilters() {
  const run = chosen(), inputs = inputsOf(run);
  const options = (name, pairs) =>
    filters.elements[name].replaceChildren(...pairs.map(([value, text]) => html("option", { value }, text)));
  options("run", report.runs.map((each, i) => [i, `${each.name} (${each.kind}, ${SIGMA_TEXT[each.is_per_input]})`]));
  const labels = [...new Set(inputs.label)].sort((a, b) => a - b);
  options("class", [["", "any"], ...labels.map((label) => [label, className(run, label)])]);
  options("rule", [["", "any"], ...run.rules.map((rule) => [ruleText(rule), ruleText(rule)])]);
  filters.elements.run.value = view.run;
  for (const name of CHOICES) {
    filters.elements[name].value = view[name];
    // A choice that this run does not offer is no choice.
    if (filters.elements[name].selectedIndex < 0) filters.elements[name].value = view[name] = "";
  }
  filters.elements.change.disabled = run.change === null;
  if (run.change === null) filters.elements.change.value = view.change = "";
  for (const option of filters.elements.sort.options) {
    option.disabled = (!run.gain && ["gain", "loss"].includes(option.value)) || (!run.sigma && option.value === "sigma");
  }
  if (filters.elements.sort.selectedOptions[0].disabled) filters.elements.sort.value = view.sort = "";
  if (view.point && !run.predict.some((_, row) => PASSES.point(run, row))) view.point = null;
  const compared = document.getElementById("compared");
  if (run.compared) {
    const { gained, lost, mean } = run.compared;
    compared.textContent = `${run.name} (${run.kind}) against ${report.runs[run.fixed].name} (${report.runs[run.fixed].kind}), ` +
      `${counted(run.rows, "input")}: ${gained} gained radius, ${lost} lost, ${run.rows - gained - lost} unchanged; mean gain ${mean}.`;
  } else if (run.is_per_input) {
    compared.textContent = "No run among these is a baseline for it with the same inputs in the same order, so gains are not shown.";
  } else {
    compared.textContent = run.is_per_input === null ? "The record does not say the sigma of this run." : "This run has one sigma for all inputs.";
  }
}

function update() {
  fillFilters();
  drawHistogram();
  drawScatter();
  drawGallery();
  writeAddress();
}

function change(what) {
  Object.assign(view, { page: 0 }, what);
  update();
}

// On the document, because the order of the gallery is chosen beside it, outside the form.
document.addEventListener("change", ({ target: { form, name, value } }) => {
  if (form !== filters) return;
  // Another run has other sigmas and other radii: what was pressed in its charts means nothing there.
  change(name === "run" ? { run: Number(value), sigma: null, point: null } : { [name]: value });
});
filters.addEventListener("reset", (event) => {
  event.preventDefault();
  const { run, hidden } = view;
  resetView();
  change({ run, hidden });
});
document.getElementById("pages").addEventListener("click", (event) => {
  const by = { back: -1, next: 1 }[event.target.name];
  if (!by) return;
  view.page += by;
  drawGallery();
  writeAddress();
  if (event.target.disabled) document.querySelector(`#pages [name=${by > 0 ? "back" : "next"}]`).focus();
  document.querySelector(".gallery-head").scrollIntoView({ block: "start" });
});

// ---------------------------------------------------------------- begin

function drawAll() {
  charts.forEach(drawCurves);
  updateCurves();
  update();
}

let drawnWidth = 0;
new ResizeObserver(() => {
  if (document.body.clientWidth === drawnWidth) return;
  drawnWidth = document.body.clientWidth;
  drawAll();
}).observe(document.body);
addEventListener("hashchange", () => {
  if (!location.hash.includes("=")) return writeAddress(); // a link to a part of the page changes no view
  readAddress();
  drawAll();
});
readAddress();
