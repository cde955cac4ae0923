// Python in a thread of its own: it loads the planner, then answers one question after another.

const base = new URL("./", self.location);
const COMPILED = new URL("compiled.zip", base).href;
const COMPILE = `
import pathlib, py_compile, shutil, sys
for module in list(sys.modules.values()):
    path = getattr(module, "__file__", None) or ""
    if path.startswith("/planner/") and path.endswith(".py"):
        py_compile.compile(path, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
pathlib.Path(shutil.make_archive("/compiled", "zip", "/planner")).read_bytes()
`;

function tell(stage, share) {
  self.postMessage({ stage, share });
}

/** What this site has kept in this browser; null where it keeps nothing (not over https, or in private). */
const kept = self.caches
  ? fetch(new URL("site.json", base)).then((answer) => answer.json()).then(({ name }) => caches.open(`kvplan-${name}`)).catch(() => null)
  : Promise.resolve(null);

/** The planner, with its modules compiled where an earlier visit kept them. */
async function planner() {
  const compiled = await (await kept)?.match(COMPILED);
  const found = compiled ?? (await fetch(new URL("kvplan.zip", base)));
  return found.arrayBuffer();
}

async function start() {
  tell("Fetching Python for the browser …", 5);
  const [{ loadPyodide }, archive] = await Promise.all([import(new URL("pyodide/pyodide.mjs", base)), planner()]);
  tell("Starting Python …", 30);
  const python = await loadPyodide({ indexURL: new URL("pyodide/", base).href });
  tell("Reading the planner …", 65);
  python.FS.mkdirTree("/planner");
  python.unpackArchive(archive, "zip", { extractDir: "/planner" });
  python.runPython("import os, sys; sys.path.insert(0, '/planner'); os.environ['HF_HUB_OFFLINE'] = '1'");
  tell("Reading the planner …", 80);
  const bridge = python.pyimport("kvplan.web.bridge");
  tell("Ready", 100);
  return { python, bridge };
}

/** Keep the planner as it is compiled, for the next visit: most of the start is compiling. */
async function keep({ python }) {
  const cache = await kept;
  if (!cache || (await cache.match(COMPILED))) return;
  const content = python.runPython(COMPILE);
  await cache.put(COMPILED, new Response(content.toJs()));
  content.destroy();
}

const started = start();
let mounts = 0;

/** Files of this computer, read where they lie: a checkpoint of many GiB is not copied. */
function mount(python, bridge, { name, files, folder }) {
  const place = `/dropped/${++mounts}/${folder}`;
  python.FS.mkdirTree(place);
  const real = files.filter((file) => file instanceof File);
  if (real.length) python.FS.mount(python.FS.filesystems.WORKERFS, { files: real }, place);
  for (const each of files) if (!(each instanceof File)) python.FS.writeFile(`${place}/${each.name}`, each.text);
  const alone = files.length === 1 ? `/${files[0].name}` : "";
  bridge.add_file(name, place + alone);
}

self.onmessage = async ({ data }) => {
  try {
    const { python, bridge } = await started;
    if (data.keep) await keep({ python });
    if (data.mount) mount(python, bridge, data.mount);
    const answer = data.question ? JSON.parse(bridge.answer(JSON.stringify(data.question))) : {};
    self.postMessage({ id: data.id, answer });
  } catch (error) {
    self.postMessage({ id: data.id, failure: String(error.message ?? error).slice(-600) });
  }
};

started.catch((error) => self.postMessage({ failure: String(error.message ?? error).slice(-600) }));
