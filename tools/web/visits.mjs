// A browser with a profile of its own, as a person's: what a first visit keeps is there at the second. It finds no host
// but this machine, as without a network.
import { chromium } from "playwright-core";

const QUIET = [
  "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
];
const PATIENCE_MS = 300_000;

/** A browser on the profile in a folder. complaints, outside: lists of what its console says and what else it asks. */
export async function browserOf({ chromium: executablePath, address }, folder, { complaints, outside }) {
  const context = await chromium.launchPersistentContext(folder, {
    executablePath, args: QUIET, permissions: ["clipboard-read", "clipboard-write"], viewport: { width: 1280, height: 900 },
  });
  const isOwn = (url) => [address, "data:", "blob:"].some((begin) => url.startsWith(begin));
  context.on("request", (request) => isOwn(request.url()) || outside.push(request.url()));
  context.on("page", (page) => {
    page.setDefaultTimeout(PATIENCE_MS);
    page.on("console", (message) => ["error", "warning"].includes(message.type()) && complaints.push(message.text()));
    page.on("pageerror", (error) => complaints.push(String(error)));
  });
  return context;
}

/** {page, milliseconds}: from the address until the first answer is drawn. */
export async function visit(context, address) {
  const page = await context.newPage();
  const began = Date.now();
  await page.goto(address);
  await page.waitForSelector("#shown:not([hidden])");
  return { page, milliseconds: Date.now() - began };
}

/** Whether the page has kept what a later visit starts from. */
async function hasKept() {
  for (const name of await caches.keys()) {
    if (await (await caches.open(name)).match(new URL("kept/memory", location.href).href)) return true;
  }
  return false;
}

export async function untilKept(page) {
  await page.evaluate(() => navigator.serviceWorker.ready);
  while (!(await page.evaluate(hasKept))) await page.waitForTimeout(250);
}

export const isAnswered = () =>
  document.getElementById("shown").dataset.answered === location.hash || document.querySelector(".mistake");

/** Open a link in the page. */
export async function ask(page, hash) {
  await page.evaluate((text) => {
    document.getElementById("shown").replaceChildren();
    document.getElementById("shown").dataset.answered = "";
    if (location.hash === text) dispatchEvent(new HashChangeEvent("hashchange"));
    else location.hash = text;
  }, hash);
}

/** Open a link, and return the document that the page's button copies. */
export async function answered(page, { hash, log }) {
  await ask(page, hash);
  if (log) {
    await page.fill("#field-log", log);
    await page.click("button[type=submit]");
  }
  await page.waitForFunction(isAnswered);
  if (await page.$(".mistake")) return page.textContent(".mistake");
  await page.click("text=Copy JSON");
  return page.evaluate(() => navigator.clipboard.readText());
}
