// A real browser on the page of a served site: links opened, answers copied, sliders moved, pictures taken.
//   node browser.mjs < {"address", "chromium", "questions", "log", "pictures"} > {"answers", "slider_ms", ...}
import fs from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { chromium } from "playwright-core";

const QUIET = [
  "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync",
];
const PATIENCE_MS = 240_000;
const SLIDER_STEPS = 40;
const axe = fs.readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const task = JSON.parse(fs.readFileSync(0, "utf8"));
const browser = await chromium.launch({ executablePath: task.chromium, args: QUIET });
const complaints = [];

async function opened(context, hash = "") {
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE_MS);
  page.on("console", (message) => message.type() === "error" && complaints.push(message.text()));
  page.on("pageerror", (error) => complaints.push(String(error)));
  const began = Date.now();
  await page.goto(task.address + hash);
  await page.waitForSelector("#shown:not([hidden])");
  return { page, milliseconds: Date.now() - began };
}

/** Open a link in the page. */
async function ask(page, hash) {
  await page.evaluate((text) => {
    document.getElementById("shown").replaceChildren();
    document.getElementById("shown").dataset.answered = "";
    if (location.hash === text) dispatchEvent(new HashChangeEvent("hashchange"));
    else location.hash = text;
  }, hash);
}

/** Open a link, and return the document that the page's button copies. */
async function answered(page, { hash, log }) {
  await ask(page, hash);
  if (log) {
    await page.fill("#field-log", log);
    await page.click("button[type=submit]");
  }
  await page.waitForFunction(() => document.getElementById("shown").dataset.answered === location.hash || document.querySelector(".mistake"));
  if (await page.$(".mistake")) return page.textContent(".mistake");
  await page.click("text=Copy JSON");
  return page.evaluate(() => navigator.clipboard.readText());
}

async function slider(page) {
  await ask(page, "#tab=size&model=llama-3.1-8b&gpu=h100-sxm&ctx=2k");
  await page.waitForFunction(() => document.getElementById("shown").dataset.answered === location.hash);
  await page.evaluate(() => performance.clearMeasures());
  await page.focus("#field-ctx");
  for (let step = 0; step < SLIDER_STEPS; step++) {
    await page.keyboard.press(step % 12 < 6 ? "ArrowRight" : "ArrowLeft");
    await page.waitForTimeout(60);
  }
  await page.waitForTimeout(1000);
  return page.evaluate(() => performance.getEntriesByName("kvplan-slider").map((each) => each.duration));
}

async function violations(page) {
  await page.evaluate(axe);
  const found = await page.evaluate(() => window.axe.run());
  return found.violations.map((each) => `${each.id}: ${each.nodes.map((node) => node.target).join(" ")}`.slice(0, 300));
}

async function pictures(context) {
  const found = {};
  const { page } = await opened(context);
  for (const { name, width, scheme, hash } of task.pictures) {
    await page.setViewportSize({ width, height: 900 });
    await page.emulateMedia({ colorScheme: scheme, reducedMotion: "reduce" });
    await ask(page, hash);
    await page.waitForFunction(() => document.getElementById("shown").dataset.answered === location.hash);
    await page.waitForFunction(() => !document.body.innerText.includes("Trying …"));
    found[name] = {
      violations: await violations(page),
      overflow: await page.evaluate(() => document.documentElement.scrollWidth > innerWidth),
    };
    await page.screenshot({ path: path.join(task.folder, `${name}.png`), fullPage: true });
  }
  return found;
}

/** With the network cut after a first visit: the page starts again and answers. */
async function offline(context) {
  const { page } = await opened(context);
  await page.evaluate(() => navigator.serviceWorker.ready);
  await page.waitForTimeout(1500);
  await context.setOffline(true);
  await page.reload();
  await page.waitForSelector("#shown:not([hidden])");
  const words = await page.textContent(".verdict");
  await context.setOffline(false);
  return words;
}

const context = await browser.newContext({ permissions: ["clipboard-read", "clipboard-write"], viewport: { width: 1280, height: 900 } });
const outside = [];
context.on("request", (request) => request.url().startsWith(task.address) || request.url().startsWith("data:") || request.url().startsWith("blob:") || outside.push(request.url()));
const cold = await opened(context);
const answers = [];
for (const question of task.questions) {
  answers.push(await answered(cold.page, question));
  process.stderr.write(`\r${answers.length} of ${task.questions.length} questions`);
}
const slider_ms = await slider(cold.page);
await cold.page.close();
const warm = await opened(context);
await warm.page.close();
const offline_words = await offline(context);
const looks = await pictures(context);
await browser.close();
process.stdout.write(JSON.stringify({
  answers, slider_ms, cold_ms: cold.milliseconds, warm_ms: warm.milliseconds, offline_words, looks, complaints, outside,
}));
