// How Python starts: as an earlier visit left it, ready to answer; else from its files and the planner's archive.
// Starting takes seconds, nearly all of them spent on compiling Python's own modules and the planner's. The memory of a
// Python that has done so, and has answered no question of a person, is kept in this browser and read at the next visit.
// It belongs to one site: `name` in site.json is a digest of every file, so that other files are another memory.
import { kept, resumed, withPlanner } from "./python.mjs";

const base = new URL("./", self.location);
const MEMORY = new URL("kept/memory", base).href;
const FILES = new URL("kept/files", base).href;
const indexURL = new URL("pyodide/", base).href;

/** What this site has kept in this browser; null where it keeps nothing (not over https, or in private). */
async function store() {
  if (!self.caches) return null;
  try {
    const { name } = await (await fetch(new URL("site.json", base), { cache: "no-cache" })).json();
    return await caches.open(`kvplan-${name}`);
  } catch {
    return null;
  }
}

const stored = store();
const modules = Promise.all([import(`${indexURL}pyodide.mjs`), import(`${indexURL}pyodide.asm.mjs`)]);

/** {python, bridge}. tell: of a stage and the percentage done. keeps: what is started here is kept for the next visit. */
export async function start(tell, keeps) {
  tell("Fetching Python for the browser …", 5);
  const python = (await fromMemory(tell)) ?? (await fromFiles(tell, keeps));
  return { python, bridge: python.pyimport("kvplan.web.bridge") };
}

async function fromMemory(tell) {
  const cache = await stored;
  const found = await Promise.all([cache?.match(MEMORY), cache?.match(FILES)]);
  if (!found[0] || !found[1]) return null;
  tell("Starting Python …", 30);
  try {
    const [memory, files] = await Promise.all(found.map((each) => each.arrayBuffer()));
    const [pyodide, engine] = await modules;
    return await resumed({ pyodide, engine, indexURL, memory: new Uint8Array(memory), files });
  } catch (error) {
    console.warn(`What was kept cannot be read (${error.message}): starting anew.`);
    await cache.delete(MEMORY);
    return null;
  }
}

async function fromFiles(tell, keeps) {
  const archive = fetch(new URL("kvplan.zip", base), { cache: "no-cache" }).then((answer) => answer.arrayBuffer());
  const [{ loadPyodide }] = await modules;
  tell("Starting Python …", 30);
  const python = await loadPyodide({ indexURL, _makeSnapshot: keeps });
  tell("Reading the planner …", 65);
  withPlanner(python, await archive);
  if (keeps) await keep(python);
  return python;
}

async function keep(python) {
  const cache = await stored;
  if (!cache) return;
  const { memory, files } = kept(python);
  const put = async () => {
    await cache.put(FILES, new Response(files));
    await cache.put(MEMORY, new Response(memory));
  };
  put().catch(() => {});  // no room: the next visit starts as this one did
}
