// Python with the planner in it: made of files, or as an earlier one was kept. Nothing is fetched here, so that a check
// under Node.js starts it alike.

const PLANNER = "/planner";
const PREPARE = `import os, sys; sys.path.insert(0, "${PLANNER}"); os.environ["HF_HUB_OFFLINE"] = "1"`;
/** What is read when it is first asked for is read before the memory is kept. */
const WARM = `
import json
from kvplan.web.bridge import answer
given = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "ctx": "16k"}
for ask in ("known", "memory", "estimate", "changes"):
    answer(json.dumps({"ask": ask, "arguments": {} if ask == "known" else given}))
del answer, ask, given
`;

/** Add the planner, from its archive, to Python. */
export function withPlanner(python, archive) {
  python.FS.mkdirTree(PLANNER);
  python.unpackArchive(archive, "zip", { extractDir: PLANNER });
  python.runPython(PREPARE);
  return python;
}

/** {memory, files} of a Python that was loaded with `_makeSnapshot`, and has answered no question of a person. */
export function kept(python) {
  python.runPython(WARM);
  return { memory: python.makeMemorySnapshot(), files: bundled(python.FS) };
}

/** A Python that goes on where the one that was kept stood. pyodide, engine: the modules; memory, files: as `kept` gave. */
export async function resumed({ pyodide, engine, indexURL, memory, files }) {
  const python = await pyodide.loadPyodide({
    indexURL, _loadSnapshot: memory,
    createPyodideModule: async (settings) => {
      const made = await engine.default(settings);
      made.growMemory(memory.byteLength);  // as large as what is read into it
      return made;
    },
  });
  unbundle(python.FS, files);
  return python;
}

/** Every file of the planner behind their index: its length, then [path, bytes] of each as JSON. */
function bundled(FS) {
  const paths = [...filesBeneath(FS, PLANNER)];
  const contents = paths.map((path) => FS.readFile(path));
  const index = new TextEncoder().encode(JSON.stringify(paths.map((path, place) => [path, contents[place].length])));
  return new Blob([new Uint32Array([index.length]), index, ...contents]);
}

function* filesBeneath(FS, folder) {
  for (const name of FS.readdir(folder)) {
    if ([".", "..", "__pycache__"].includes(name)) continue;
    const path = `${folder}/${name}`;
    if (FS.isDir(FS.stat(path).mode)) yield* filesBeneath(FS, path);
    else yield path;
  }
}

function unbundle(FS, bundle) {
  const [length] = new Uint32Array(bundle, 0, 1);
  const index = JSON.parse(new TextDecoder().decode(new Uint8Array(bundle, 4, length)));
  const made = new Set();
  let place = 4 + length;
  for (const [path, size] of index) {
    const folder = path.slice(0, path.lastIndexOf("/"));
    if (!made.has(folder)) FS.mkdirTree(folder);
    made.add(folder);
    FS.writeFile(path, new Uint8Array(bundle, place, size), { canOwn: true });
    place += size;
  }
}
