// A real browser on the page of a served site: links opened, answers copied, sliders moved, pictures taken.
//   node browser.mjs < {"address", "own_address", "chromium", "folder", "questions", "log", "pictures"} > {"answers", ...}
import fs from "node:fs";
import { createRequire } from "node:module";
import os from "node:os";
import path from "node:path";
import { pathsOf } from "./paths.mjs";
import { answered, ask, browserOf, isAnswered, untilKept, visit } from "./visits.mjs";

const SLIDER_STEPS = 40;
const VISITS = 5;
const axe = fs.readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const task = JSON.parse(fs.readFileSync(0, "utf8"));
const found = { complaints: [], outside: [], answers: [], first_answers: [], warm_ms: [] };

async function slider(page) {
  await ask(page, "#tab=size&model=llama-3.1-8b&gpu=h100-sxm&ctx=2k");
  await page.waitForFunction(isAnswered);
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
  const seen = await page.evaluate(() => window.axe.run());
  return seen.violations.map((each) => `${each.id}: ${each.nodes.map((node) => node.target).join(" ")}`.slice(0, 300));
}

async function pictures(page) {
  const looks = {};
  for (const { name, width, scheme, hash } of task.pictures) {
    await page.setViewportSize({ width, height: 900 });
    await page.emulateMedia({ colorScheme: scheme, reducedMotion: "reduce" });
    await ask(page, hash);
    if (hash.includes("tab=explain")) {
      await page.fill("#field-log", task.log);
      await page.click("button[type=submit]");
    }
    await page.waitForFunction(isAnswered);
    await page.waitForFunction(() => !document.body.innerText.includes("Trying …"));
    looks[name] = {
      violations: await violations(page),
      overflow: await page.evaluate(() => document.documentElement.scrollWidth > innerWidth),
    };
    await page.screenshot({ path: path.join(task.folder, `${name}.png`), fullPage: true });
  }
  return looks;
}

/** With every request cut, also to the site's own server: the page starts again and answers. */
async function offline(context, page) {
  await context.setOffline(true);
  await page.reload();
  await page.waitForSelector("#shown:not([hidden])");
  const words = await page.textContent(".verdict");
  await context.setOffline(false);
  return words;
}

async function all(page, questions, answers) {
  for (const question of questions) {
    answers.push(await answered(page, question));
    process.stderr.write(`\r${answers.length} of ${questions.length} questions`);
  }
}

/** Use a browser on a profile; it is closed behind that, as a person's between two days. */
async function day(profile, use, address = task.address) {
  const context = await browserOf({ ...task, address }, profile, found);
  await use(context);
  await context.close();
}

const profile = fs.mkdtempSync(path.join(os.tmpdir(), "kvplan-visits-"));
await day(profile, async (context) => {
  const { page, milliseconds } = await visit(context, task.address);
  found.cold_ms = milliseconds;
  await untilKept(page);
  await all(page, task.questions.filter((_, place) => place % 4 === 0), found.first_answers);
});
found.load = os.loadavg()[0];
found.cores = os.cpus().length;
for (let count = 0; count < VISITS; count++) {
  await day(profile, async (context) => found.warm_ms.push((await visit(context, task.address)).milliseconds));
}
await day(profile, async (context) => {
  const { page } = await visit(context, task.address);
  found.paths = await pathsOf(page, task.log);
  await all(page, task.questions, found.answers);
  found.slider_ms = await slider(page);
  found.offline_words = await offline(context, page);
  found.looks = await pictures(page);
});
const other = fs.mkdtempSync(path.join(os.tmpdir(), "kvplan-visits-"));
await day(other, async (context) => {
  const { page } = await visit(context, task.own_address);
  found.own_words = await page.textContent(".verdict");
}, task.own_address);
for (const each of [profile, other]) fs.rmSync(each, { recursive: true });
process.stdout.write(JSON.stringify(found));
