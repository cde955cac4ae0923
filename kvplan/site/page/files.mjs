// Models and logs from a person's own files, and configs that their own browser fetches from the hub.

const HUB = "https://huggingface.co";

/** What was dropped: {log}, {rows}, or {model: {name, files, folder}}; null for what is none of them. */
export async function sorted(files) {
  const list = [...files];
  const ends = (...endings) => list.find((file) => endings.some((ending) => file.name.toLowerCase().endsWith(ending)));
  const rows = ends(".csv");
  if (rows) return { rows: await rows.text(), name: rows.name };
  const gguf = ends(".gguf");
  if (gguf) return { model: { name: gguf.name, files: [gguf], folder: "gguf" } };
  const config = list.find((file) => file.name === "config.json") ?? ends(".json");
  if (config) return { model: await configModel(list, config) };
  const log = ends(".log", ".txt", ".out", ".err");
  return log ? { log: await log.text() } : null;
}

/** The config by its folder's or its own name; safetensors beside it make it a checkpoint. */
async function configModel(list, config) {
  const isCheckpoint = config.name === "config.json" && list.some((file) => file.name.endsWith(".safetensors"));
  const parent = (config.webkitRelativePath ?? "").split("/").at(-2);
  const folder = (parent || nameIn(await config.text()) || "model").replace(/[^\w.-]/g, "-");
  const kept = isCheckpoint ? list.filter((file) => /\.(json|safetensors)$/.test(file.name)) : [config];
  return { name: config.name === "config.json" ? folder : config.name, files: kept, folder };
}

function nameIn(text) {
  try {
    return JSON.parse(text)._name_or_path?.split("/").pop() || "";
  } catch {
    return "";
  }
}

/** The config of a public repository; null where the hub has none to give. */
export async function fromHub(repository) {
  if (!/^[\w.-]+\/[\w.-]+$/.test(repository)) return null;
  const found = await fetch(`${HUB}/${repository}/resolve/main/config.json`, { credentials: "omit" }).catch(() => null);
  if (!found?.ok) return null;
  return { name: repository, files: [{ name: "config.json", text: await found.text() }], folder: repository.split("/")[1] };
}
