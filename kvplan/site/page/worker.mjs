// Python in a thread of its own: it loads the planner, then answers one question after another.

const base = new URL("./", self.location);

function tell(stage, share) {
  self.postMessage({ stage, share });
}

async function start() {
  tell("Fetching Python for the browser …", 5);
  const [{ loadPyodide }, archive] = await Promise.all([
    import(new URL("pyodide/pyodide.mjs", base)),
    fetch(new URL("kvplan.zip", base)).then((answer) => answer.arrayBuffer()),
  ]);
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
    if (data.mount) mount(python, bridge, data.mount);
    const answer = data.question ? JSON.parse(bridge.answer(JSON.stringify(data.question))) : {};
    self.postMessage({ id: data.id, answer });
  } catch (error) {
    self.postMessage({ id: data.id, failure: String(error.message ?? error).slice(-600) });
  }
};

started.catch((error) => self.postMessage({ failure: String(error.message ?? error).slice(-600) }));
