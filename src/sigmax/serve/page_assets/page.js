
// Asks the service it came from, and nothing else. Radii come as text that the service has rounded down.

const AT_ONCE = 4;  // questions: more wait here
const TOKEN = "sigmax-token";
const asking = document.getElementById("asking");
const drop = document.getElementById("drop");
const files = document.getElementById("files");
const answers = document.getElementById("answers");
const questions = [];
let about = null;

const RULES = {
  kept: "kept: what sampling proved",
  truncated: "truncated at a ball with another label",
  inherited: "inherited from a ball that contains the image",
  abstained: "abstained: nothing could be proved",
  refused: "refused: only less certain answers contain the image",
};
const originOf = (answer) => {
  if (answer.recalled) return "the memory, without sampling";
  if (about.digest) return "sampling; a frozen memory stores nothing";
  return answer.label === null ? "sampling; an abstention is not stored" : "sampling, now in the memory";
};
const say = (text) => { document.getElementById("said").textContent = text; };
const className = (label) => {
  const name = about.classes[label] ?? String(label);
  return label === null ? "abstains" : /^\d+$/.test(name) ? `class ${name}` : name;
};
const headers = (more = {}) => {
  const token = sessionStorage.getItem(TOKEN);
  return token ? { ...more, authorization: `Bearer ${token}` } : more;
};
const problemOf = async (response) => {
  try {
    return (await response.json()).error;
  } catch {
    return `the service answered ${response.status}`;
  }
};

// ---------------------------------------------------------------- the service

async function meet() {
  const entry = document.getElementById("entry");
  let response;
  try {
    response = await fetch("about", { headers: headers() });
  } catch {
    document.getElementById("service").textContent = "The service does not answer. Is it running?";
    return;
  }
  if (response.status === 401 && entry && !sessionStorage.getItem(TOKEN)) {
    document.getElementById("service").textContent = "This service asks for a token.";
    return;
  }
  if (!response.ok) {
    document.getElementById("service").textContent = `Not possible: ${await problemOf(response)}`;
    return;
  }
  about = await response.json();
  if (entry) entry.hidden = true;
  showService();
  const [, height, width] = about.shape;
  document.getElementById("size").textContent = `${width} × ${height} pixels; other images are resized here first.`;
  asking.elements.n.value = about.n;
  asking.elements.n.max = about.most_n;
  asking.hidden = false;
}

function showService() {
  const kind = about.digest ? `a frozen memory (${about.digest.slice(0, 12)})` : "a live memory";
  document.getElementById("service").textContent =
    `${about.model}, with ${kind} of ${about.entries.toLocaleString("en")} answers. Radii are l${about.norm} distances; ` +
    `each certificate is wrong with probability at most ${about.alpha}.`;
}

async function countAgain() {
  const response = await fetch("about", { headers: headers() }).catch(() => null);
  if (!response?.ok) return;
  about.entries = (await response.json()).entries;
  showService();
}

document.getElementById("entry")?.addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN, event.target.elements.token.value.trim());
  meet();
});

// ---------------------------------------------------------------- pictures

async function readPicture(file) {
  const bitmap = await createImageBitmap(file);
  const [, height, width] = about.shape;
  const canvas = html("canvas", { width, height });
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, 0, 0, width, height);
  const isResized = bitmap.width !== width || bitmap.height !== height;
  const body = isResized ? await new Promise((done) => canvas.toBlob(done, "image/png")) : file;
  return { canvas, body, note: isResized ? `resized from ${bitmap.width} × ${bitmap.height}` : "" };
}

const normal = () => Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random());

// One noisy copy, to see what the network sees. The service draws noise of its own.
function drawNoisy(question, sigma) {
  const { width, height } = question.picture.canvas;
  const pixels = question.picture.canvas.getContext("2d").getImageData(0, 0, width, height);
  const draw = about.noise === "uniform" ? () => 2 * Math.random() - 1 : normal;
  for (let i = 0; i < pixels.data.length; i += 4) {
    const gray = about.shape[0] === 1 ? draw() : null;
    for (let c = 0; c < 3; c += 1) pixels.data[i + c] += Math.round(255 * sigma * (gray ?? draw()));
  }
  question.noisy.getContext("2d").putImageData(pixels, 0, 0);
  question.noisyText.textContent = `under noise of sigma ${sigma.toFixed(3)}`;
  question.noisyFigure.hidden = false;
}

// ---------------------------------------------------------------- one question

function addQuestion(file, picture) {
  const { width, height } = picture.canvas;
  const question = {
    file, picture, n: Number(asking.elements.n.value), deadline: asking.elements.deadline.value,
    points: [], state: "waiting", id: null,
    noisy: html("canvas", { width, height, role: "img", "aria-label": "The image under noise" }),
    noisyText: html("figcaption"),
    radius: html("output", {}, "0.000"), unit: html("span", { class: "unit" }), label: html("strong"), status: html("span", {}, "waits for its turn"),
    bar: html("progress", { max: 1, value: 0, "aria-label": `Samples for ${file.name}` }),
    stop: html("button", { type: "button", "aria-label": `Stop early: ${file.name}` }, "Stop early"),
    plot: html("div", { class: "plot" }), facts: html("dl", { class: "facts" }),
    nearest: html("div"),
  };
  picture.canvas.setAttribute("role", "img");
  picture.canvas.setAttribute("aria-label", file.name);
  question.noisyFigure = html("figure", { hidden: "" }, question.noisy, question.noisyText);
  question.running = html("div", { class: "running" }, question.bar, question.status, question.stop);
  const caption = html("figcaption", {}, ["the image", picture.note].filter(Boolean).join(", "));
  question.node = html("article", { class: "question", "aria-busy": "true" },
    html("h2", {}, file.name),
    html("div", { class: "pictures" }, html("figure", {}, picture.canvas, caption), question.noisyFigure),
    html("div", { class: "result" },
      html("p", { class: "radius" }, question.radius, question.unit, question.label), question.running, question.plot, question.facts,
      question.nearest));
  question.stop.addEventListener("click", () => stopQuestion(question));
  answers.prepend(question.node);
  questions.push(question);
  return question;
}

async function stopQuestion(question) {
  question.stop.disabled = true;
  question.isStopped = true;
  if (question.state === "waiting") fail(question, "stopped before it was asked");
  else if (question.id) await fetch(`ask/${question.id}/stop`, { method: "POST", headers: headers() });
}

function drawRadius(question) {
  const width = Math.max(220, question.plot.clientWidth), points = question.points;
  const settled = question.answer?.radius;
  const top = Math.max(0.1, ...points.map((point) => point.radius), settled ?? 0);
  const last = Math.max(question.n, points.at(-1)?.n ?? 0);
  const { root, toX, toY } = makePlot(width, 210,
    { from: 0, to: last, unit: 1000, label: "thousand samples" },
    { from: 0, to: top * 1.1, unit: 1, label: `certified l${about.norm} radius`, least: 0.01 });
  let path = `M${toX(0)} ${toY(0)}`;
  for (const point of points) path += `H${toX(point.n).toFixed(1)}V${toY(point.radius).toFixed(1)}`;
  root.append(svg("path", { class: "curve", d: path }));
  if (question.answer && question.answer.rule !== "kept") {  // the memory has changed what sampling proved
    root.append(svg("line", { class: "settled", x1: toX(0), x2: toX(last), y1: toY(settled), y2: toY(settled) }));
  }
  question.plot.replaceChildren(root);
}

function showFacts(question, facts) {
  question.facts.replaceChildren(...Object.entries(facts).flatMap(([name, value]) =>
    [html("div", {}, html("dt", {}, name), html("dd", {}, String(value)))]));
}

const EVENTS = {
  question(question, data) {
    question.id = data.id;
    question.n = data.n;
    question.status.textContent = "class and noise are being chosen";
    if (question.isStopped) stopQuestion(question);
  },
  proved(question, data) {
    if (!question.points.length) drawNoisy(question, data.sigma);
    question.points.push(data);
    question.radius.textContent = data.shown;
    question.unit.textContent = data.label === null ? "nothing proved yet" : "radius proved so far";
    question.label.textContent = data.label === null ? "" : className(data.label);
    question.bar.value = data.n / question.n;
    question.status.textContent = `${data.n.toLocaleString("en")} of ${question.n.toLocaleString("en")} samples`;
    showFacts(question, { sigma: data.sigma.toFixed(3), "probability at least": floor(data.p_lower) });
    drawRadius(question);
  },
  answer(question, data) {
    question.answer = data;
    question.state = "answered";
    question.node.setAttribute("aria-busy", "false");
    question.running.hidden = true;
    if (!question.points.length) drawNoisy(question, data.sigma);
    question.radius.textContent = data.label === null ? "–" : data.shown;
    question.unit.textContent = data.label === null ? "" : `certified l${about.norm} radius`;
    question.label.textContent = className(data.label);
    showFacts(question, {
      rule: RULES[data.rule] ?? data.rule,
      sigma: data.sigma.toFixed(3), "probability at least": floor(data.p_lower),
      samples: data.n.toLocaleString("en"), "failure probability": data.alpha,
      from: originOf(data),
      ...(data.tau === null ? {} : { "level told (tau)": data.tau.toFixed(3) }),
      ...(data.memory ? { "frozen memory": data.memory.slice(0, 12) } : {}),
    });
    if (question.points.length) drawRadius(question);
    else question.plot.hidden = true;
    if (data.nearest?.length) {
      const rows = data.nearest.map((entry) =>
        [entry.distance === "0.000" ? `${entry.id}, this image` : String(entry.id), className(entry.label), entry.distance, entry.radius, entry.rule]);
      question.nearest.append(html("h3", {}, "Nearest answers in the memory"),
        html("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Nearest answers in the memory" },
          table(["entry", "class", "distance", "radius", "rule"], rows)));
    }
    say(data.label === null ? `${question.file.name}: abstains`
      : `${question.file.name}: ${className(data.label)}, certified radius ${data.shown}`);
  },
  error(question, data) {
    fail(question, data.error);
  },
};
const floor = (p) => (Math.floor(p * 1e4) / 1e4).toFixed(4);

function fail(question, text) {
  question.state = "failed";
  question.node.setAttribute("aria-busy", "false");
  question.running.hidden = true;
  question.plot.hidden = true;
  question.radius.textContent = "–";
  question.unit.textContent = "";
  question.label.textContent = "no answer";
  question.facts.replaceChildren(html("div", { class: "problem" }, text));
  say(`${question.file.name}: ${text}`);
}

async function* readEvents(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const [, name] = part.match(/^event: (\w+)$/m) ?? [];
      const [, data] = part.match(/^data: (.*)$/m) ?? [];
      if (name) yield [name, JSON.parse(data)];
    }
  }
}

async function ask(question) {
  const said = new URLSearchParams({ n: question.n, ...(question.deadline ? { deadline: question.deadline } : {}) });
  const response = await fetch(`ask?${said}`, {
    method: "POST", body: question.picture.body, headers: headers({ accept: "text/event-stream" }),
  });
  if (response.status === 429) {
    const seconds = Number(response.headers.get("retry-after")) || 1;
    question.status.textContent = `the service is busy; asks again in ${seconds} s`;
    await new Promise((done) => setTimeout(done, 1000 * seconds));
    return question.isStopped ? fail(question, "stopped before it was asked") : ask(question);
  }
  if (!response.ok) return fail(question, await problemOf(response));
  for await (const [name, data] of readEvents(response.body)) EVENTS[name]?.(question, data);
  if (question.state === "asked") fail(question, "the service ended the connection; drop the image again");
}

// ---------------------------------------------------------------- many questions

const isOpen = (question) => question.state === "waiting" || question.state === "asked";

function showProgress() {
  const open = questions.filter(isOpen).length, done = questions.length - open;
  document.getElementById("batch").hidden = !questions.length;
  document.getElementById("progress-text").textContent = `${done} of ${questions.length} answered`;
  document.getElementById("progress").value = done / Math.max(1, questions.length);
  document.getElementById("stop-all").disabled = !open;
}

function askNext() {
  while (questions.filter((question) => question.state === "asked").length < AT_ONCE) {
    const next = questions.find((question) => question.state === "waiting");
    if (!next) break;
    next.state = "asked";
    ask(next).catch((error) => fail(next, `the service does not answer (${error.message})`)).finally(() => {
      showProgress();
      askNext();
      if (!questions.some(isOpen)) countAgain();
    });
  }
  showProgress();
}

async function take(list) {
  if (!asking.reportValidity()) return;
  for (const file of list) {
    try {
      addQuestion(file, await readPicture(file));
    } catch {
      say(`${file.name} is not an image that this browser can read`);
      answers.prepend(html("p", { class: "problem" }, `${file.name} is not an image that this browser can read.`));
    }
  }
  askNext();
}

files.addEventListener("change", () => {
  take([...files.files]);
  files.value = "";
});
// On the whole page: a browser opens a file that is dropped beside the box, and the answers would be gone.
const hasFiles = (event) => about && event.dataTransfer.types.includes("Files");
for (const name of ["dragenter", "dragover"]) {
  addEventListener(name, (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    drop.classList.add("is-over");
  });
}
for (const name of ["dragleave", "drop"]) addEventListener(name, () => drop.classList.remove("is-over"));
addEventListener("drop", (event) => {
  if (!hasFiles(event)) return;
  event.preventDefault();
  take([...event.dataTransfer.files]);
});
asking.addEventListener("submit", (event) => event.preventDefault());
document.getElementById("stop-all").addEventListener("click", () => questions.filter(isOpen).forEach(stopQuestion));
new ResizeObserver(() => questions.filter((question) => question.points.length).forEach(drawRadius)).observe(answers);
meet();
