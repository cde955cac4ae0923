// The page: a state, which is its link; controls that change it; answers of the planner, drawn as they come.
import { field, fieldsOf } from "./controls.mjs";
import { copyButtons } from "./copy.mjs";
import { element, mistake, say } from "./dom.mjs";
import { fromHub, sorted } from "./files.mjs";
import { Planner } from "./planner.mjs";
import { showEstimate } from "./show_estimate.mjs";
import { showLog } from "./show_log.mjs";
import { showPlan } from "./show_plan.mjs";
import { showRows } from "./show_rows.mjs";
import { argumentsOf, readLink, stateOf, writeLink } from "./state.mjs";

const ESTIMATED = [
  "model", "gpu", "ctx", "average", "quantization", "kv_cache_dtype", "gpu_memory_utilization", "max_num_seqs",
  "max_num_batched_tokens", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "engine", "dtype",
  "block_size", "enable_expert_parallel", "enforce_eager",
];
const PLANNED = [
  "model", "users", "request_rate", "ctx_avg", "ctx_max", "slo", "gpu", "input_len", "output_len", "max_gpus",
  "budget", "quantization", "kv_cache_dtype", "engine", "worst_case",
];
const PAUSE_MS = 180;

const at = (id) => document.getElementById(id);
const page = { state: {}, pinned: null, known: null, version: "", log: "", rows: null, drawn: 0 };
const last = { memory: null, whole: null, changes: null, key: "" };
const plans = { mine: null, pinned: null, pinnedKey: "" };
const planner = new Planner((stage, share) => {
  at("starting-text").textContent = stage;
  at("starting-bar").value = share;
});

function link() {
  const shown = { ...page.state };
  return location.href.replace(/#.*/, "") + writeLink(shown, page.pinned, page.version);
}

function keepLink() {
  history.replaceState(null, "", writeLink(page.state, page.pinned, page.version));
}

function show(...children) {
  at("starting").hidden = true;
  at("shown").hidden = false;
  at("shown").replaceChildren(...children);
}

function changed(name, value) {
  if (name === "log") page.log = value;
  else page.state[name] = value;
  keepLink();
  if (page.state.tab === "size") estimate();
}

function drawControls() {
  const { state, known } = page;
  const { main, more } = fieldsOf(state.tab, known);
  const valueOf = (spec) => (spec.name === "log" ? page.log : spec.name === "gpus" && state.gpus === "1" ? "" : state[spec.name]);
  const make = (specs) => element("div", { class: "fields" }, specs.map((spec) => field(spec, valueOf(spec), changed)));
  const isFolded = !more.some((spec) => state[spec.name]);
  const submit = { plan: "Find GPUs", explain: "Explain it" }[state.tab];
  const chooser = element("input", { type: "file", multiple: true, hidden: true, "aria-hidden": "true", tabindex: "-1", onchange: (event) => dropped(event.target.files) });
  const box = element("form", { class: "card", onsubmit: submitted },
    main.length ? make(main) : null,
    more.length ? element("details", { class: "more", open: !isFolded }, element("summary", {}, "More settings"), make(more)) : null,
    submit ? element("p", {}, element("button", { class: "main", type: "submit" }, submit)) : null,
    element("div", { class: "drop" }, DROPS[state.tab], " ",
      element("button", { type: "button", onclick: () => chooser.click() }, "choose a file"), chooser));
  at("ask").replaceChildren(box);
  at("ask").setAttribute("aria-labelledby", `tab-${state.tab}`);
  for (const tab of document.querySelectorAll("[role=tab]")) {
    const isChosen = tab.dataset.tab === state.tab;
    tab.setAttribute("aria-selected", String(isChosen));
    tab.tabIndex = isChosen ? 0 : -1;
  }
}

const DROPS = {
  size: "Your own model: drop its config.json, a .gguf or a checkpoint's files here, or",
  plan: "Your own model: drop its config.json or a .gguf here, or",
  explain: "Drop a log here, or",
  rows: "Drop the results.csv of a sweep here, or",
};

function submitted(event) {
  event.preventDefault();
  document.activeElement?.blur?.();
  if (page.state.tab === "plan") plan();
  if (page.state.tab === "explain") explain();
}

// --- size ---

let timer = 0;

async function estimate() {
  const given = argumentsOf(page.state, ESTIMATED);
  const key = JSON.stringify(given);
  clearTimeout(timer);
  Object.assign(last, { key, link: location.hash });  // at once: what is still on its way answers something else
  const began = performance.now();
  const answer = await planner.memory(given);
  if (answer === null || last.key !== key || page.state.tab !== "size") return;
  last.memory = answer;
  drawEstimate();
  performance.measure("kvplan-slider", { start: began, end: performance.now() });
  if (!answer.error) timer = setTimeout(() => estimateWhole(given, key), PAUSE_MS);
}

async function estimateWhole(given, key) {
  const pinned = pinnedHere() ? await planner.slowly("estimate", argumentsOf(page.pinned, ESTIMATED)) : null;
  const whole = await planner.slowly("estimate", given);
  if (last.key !== key || page.state.tab !== "size") return;
  Object.assign(last, { whole, wholeKey: key, pinned });
  drawEstimate();
  say(`${whole.view?.verdict.headline ?? ""} ${whole.view?.verdict.sentence ?? ""}`);
  const changes = await planner.slowly("changes", given);
  if (last.key !== key || page.state.tab !== "size") return;
  Object.assign(last, { changes: changes?.changes ?? [], changesKey: key });
  drawEstimate();
}

function drawEstimate() {
  const answer = last.wholeKey === last.key ? last.whole : last.memory;
  if (answer.error) return show(mistake(answer), ...hubOffer(answer));
  const isCurrent = last.wholeKey === last.key;
  const more = {  // times and changes of another question are not shown meanwhile, not even pale
    speed: answer.view.speed, isWaiting: !isCurrent, changes: last.changesKey === last.key ? last.changes : null,
    isAlone: !pinnedHere(), onChange: (found) => take({ tab: "size", model: page.state.model, ...stateOf(found) }),
  };
  at("shown").dataset.answered = isCurrent ? last.link : "";
  const tools = element("div", { class: "row-buttons" }, copyButtons(answer, link), compareButton(() => (last.pinned = last.whole), drawEstimate));
  const mine = showEstimate(answer, { ...more, tools });
  if (!pinnedHere() || !last.pinned || last.pinned.error) return show(element("div", { class: "stack" }, ...warnings(), mine));
  const other = showEstimate(last.pinned, { speed: last.pinned.view.speed, isAlone: false });
  return show(element("div", { class: "stack" }, ...warnings(), element("div", { class: "sides" }, other, mine)));
}

/** What stays for comparison, if it is of this tab. */
function pinnedHere() {
  return page.pinned && (page.pinned.tab ?? "size") === page.state.tab ? page.pinned : null;
}

/** pin: keeps the answer that is shown; draw: draws anew. */
function compareButton(pin, draw) {
  const isPinned = pinnedHere() !== null;
  return element("button", {
    type: "button", class: "plain", "aria-pressed": String(isPinned),
    onclick: () => {
      page.pinned = isPinned ? null : { ...page.state };
      if (!isPinned) pin();
      keepLink();
      draw();
      say(isPinned ? "The comparison has ended." : "This answer stays; change the settings to compare.");
    },
  }, isPinned ? "End the comparison" : "Compare with another");
}

/** A link of another version: its numbers may have been others. */
function warnings() {
  const made = page.linked && page.linked !== page.version
    ? `This link was made with kvplan ${page.linked}; the numbers here are those of ${page.version}.` : null;
  return made ? [element("p", { class: "warning" }, made)] : [];
}

function hubOffer(answer) {
  const name = page.state.model ?? "";
  if (!/^[\w.-]+\/[\w.-]+$/.test(name) || !answer.error.includes("not built in")) return [];
  return [element("p", {}, element("button", { type: "button", class: "plain", onclick: () => fetchModel(name) },
    `Read ${name}'s config.json from huggingface.co`))];
}

async function fetchModel(name) {
  const found = await fromHub(name);
  if (!found) return show(mistake({ error: `The hub gave no config.json of ${name} to this browser.`, hint: "a gated repository asks for a login: drop its config.json here" }));
  planner.mount(found);
  return run();
}

// --- plan, log, rows ---

/** A card that waits; returns what moves its bar to a share. */
function waiting(words, onStop) {
  const began = Date.now();
  const done = element("progress", { "aria-label": words, max: "1" });
  const seconds = element("p", { class: "quiet" }, "0 s");
  const tick = setInterval(() => {
    const share = done.hasAttribute("value") ? `, ${Math.round(100 * done.value)} %` : "";
    seconds.textContent = `${Math.round((Date.now() - began) / 1000)} s${share}`;
    if (!seconds.isConnected) clearInterval(tick);
  }, 500);
  show(element("div", { class: "card waiting" }, element("p", {}, words), done, seconds,
    element("button", { type: "button", class: "plain", onclick: onStop }, "Stop")));
  return (share) => (done.value = share);
}

async function slowly(question, given, words, draw) {
  const mine = ++page.drawn;
  const { tab } = page.state;
  const asked = location.hash;
  const onShare = waiting(words, () => {
    planner.stop();
    hello();
  });
  const answer = await planner.slowly(question, given, onShare);
  if (answer === null || mine !== page.drawn || tab !== page.state.tab) return;
  if (answer.error) return show(mistake(answer), ...hubOffer(answer));
  await draw(answer);
  if (mine !== page.drawn || tab !== page.state.tab) return;
  at("shown").dataset.answered = asked;
  say("The answer is here.");
}

function alone(answer, shown) {
  show(element("div", { class: "stack" }, ...warnings(), shown, copyButtons(answer, link)));
}

function planArguments(state) {
  const given = argumentsOf({ ...state, gpus: "" }, PLANNED);
  if (given.gpu) given.gpu = given.gpu.split(/[\s,]+/).filter(Boolean);
  return given;
}

function plan() {
  const given = planArguments(page.state);
  if (!given.users && !given.request_rate) return hello();
  return slowly("plan", given, "Trying every deployment of every GPU that serves the model …", async (answer) => {
    plans.mine = answer;
    await findPinnedPlan();
    drawPlan();
  });
}

/** The plan that stays for comparison: kept, or asked where a link brought it. */
async function findPinnedPlan() {
  const pinned = pinnedHere();
  const key = pinned && JSON.stringify(planArguments(pinned));
  if (!pinned || plans.pinnedKey === key) return;
  const found = await planner.slowly("plan", planArguments(pinned));
  Object.assign(plans, { pinned: found, pinnedKey: key });
}

function drawPlan() {
  const pin = () => Object.assign(plans, { pinned: plans.mine, pinnedKey: JSON.stringify(planArguments(page.state)) });
  const tools = element("div", { class: "row-buttons" }, copyButtons(plans.mine, link), compareButton(pin, drawPlan));
  const other = pinnedHere() && plans.pinned;
  const mine = element("div", { class: "stack" }, showPlan(plans.mine, other ? "second plan" : ""), tools);
  if (!other) return show(element("div", { class: "stack" }, ...warnings(), mine));
  const first = other.error ? mistake(other) : showPlan(other, "first plan");
  return show(element("div", { class: "stack" }, ...warnings(), element("div", { class: "sides" }, first, mine)));
}

function explain() {
  const given = { ...argumentsOf({ ...page.state, gpus: "" }, ["model", "gpu"]), log: page.log };
  return slowly("explain", given, "Reading the log …", (answer) => alone(answer, showLog(answer)));
}

function rows() {
  if (!page.rows) return hello();
  return slowly("rows", { text: page.rows.text }, "Reading the rows …", (answer) => alone(answer, showRows(answer, page.rows.name)));
}

const HELLO = {
  plan: "Say how many users there are and how long their sequences, then “Find GPUs”. Leave GPUs empty to try all.",
  explain: "Paste what vLLM or SGLang printed while it started or stopped: where the memory went, and what to change.",
  rows: "Drop the results.csv of a sweep: what was measured stands beside what had been predicted.",
};

function hello() {
  show(element("div", { class: "card waiting" }, element("p", { class: "quiet" }, HELLO[page.state.tab] ?? "")));
}

// --- the whole ---

function run() {
  const { tab } = page.state;
  if (tab === "size") return estimate();
  if (tab === "plan") return page.state.users || page.state.request_rate ? plan() : hello();
  return tab === "rows" ? rows() : page.log ? explain() : hello();
}

/** Take a whole new state: a tab, a change, a link. */
function take(state) {
  page.state = state;
  keepLink();
  drawControls();
  return run();
}

function goTo(tab) {
  const { model, quantization, kv_cache_dtype, engine } = page.state;
  const kept = { ...page.kept?.[tab], model: tab === "explain" ? "" : model || page.model };
  page.kept = { ...page.kept, [page.state.tab]: page.state };
  page.model = model || page.model;
  const formats = tab === "size" || tab === "plan" ? { quantization, kv_cache_dtype, engine } : {};
  const first = tab === "size" && !page.kept.size ? { gpu: "h100-sxm", ctx: "16k" } : {};
  const clean = Object.entries({ ...first, ...formats, ...kept }).filter(([, value]) => value);
  return take({ ...Object.fromEntries(clean), tab });
}

async function dropped(files) {
  const found = await sorted(files);
  if (!found) return show(mistake({ error: "This is no config, checkpoint, log or results.csv.", hint: "drop a config.json, a .gguf, a .log or a results.csv" }));
  if (found.rows) {
    page.rows = { text: found.rows, name: found.name };
    return goTo("rows");
  }
  if (found.log) {
    page.log = found.log;
    return goTo("explain");
  }
  planner.mount(found.model);
  const tab = page.state.tab === "plan" ? "plan" : "size";
  return take({ ...page.state, tab, model: found.model.name });
}

function listen() {
  const tabs = [...document.querySelectorAll("[role=tab]")];
  tabs.forEach((tab, index) => {
    tab.addEventListener("click", () => goTo(tab.dataset.tab));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = tabs[(index + step + tabs.length) % tabs.length];
      next.focus();
      goTo(next.dataset.tab);
    });
  });
  at("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = isDark ? "light" : "dark";
    localStorage.setItem("kvplan-theme", root.dataset.theme);
  });
  for (const name of ["dragover", "dragleave", "drop"]) {
    document.addEventListener(name, (event) => {
      event.preventDefault();
      document.body.classList.toggle("dragging", name === "dragover");
      if (name === "drop" && event.dataTransfer.files.length) dropped(event.dataTransfer.files);
    });
  }
  addEventListener("hashchange", () => {
    const read = readLink(location.hash);
    Object.assign(page, { pinned: read.pinned, linked: read.state.kvplan });
    delete read.state.kvplan;
    take(read.state);
  });
}

/** The controls come first, from what the site knows by name; the answer comes as soon as Python has started. */
async function begin() {
  const read = readLink(location.hash);
  Object.assign(page, { state: read.state, pinned: read.pinned, linked: read.state.kvplan });
  delete page.state.kvplan;
  const known = await (await fetch("known.json")).json();
  known.names = new Set(known.models.flatMap((each) => [each.name, each.id, ...each.aliases].map((name) => name.toLowerCase())));
  Object.assign(page, { known, version: known.version });
  at("release").textContent = `kvplan ${known.version}, vLLM up to ${known.release}`;
  listen();
  drawControls();
  const isSized = page.state.tab === "size";
  await Promise.all([planner.ready, isSized ? run() : null]);
  performance.measure("kvplan-first-answer", { start: 0, end: performance.now() });
  planner.slow ??= planner.second();
  navigator.serviceWorker?.register("sw.js").catch(() => {});
  if (!isSized) await run();
}

begin().catch((error) => {
  show(mistake({ error: `The planner did not start: ${error.message}`, hint: "reload; the page must be served over http, not opened as a file" }));
});
