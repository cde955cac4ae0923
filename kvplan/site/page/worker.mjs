// Python in a thread of its own: it starts, then answers one question after another. With `?keeps` it keeps what has
// started for the next visit.
import { start } from "./starting.mjs";

const keeps = new URL(self.location).searchParams.has("keeps");
const started = start((stage, share) => self.postMessage({ stage, share }), keeps);
started.then(
  () => self.postMessage({ stage: "Ready", share: 100 }),
  (error) => self.postMessage({ failure: String(error.message ?? error).slice(-600) }),
);
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
    const show = (share) => self.postMessage({ id: data.id, share });
    const answer = data.question ? JSON.parse(bridge.answer(JSON.stringify(data.question), show)) : {};
    self.postMessage({ id: data.id, answer });
  } catch (error) {
    self.postMessage({ id: data.id, failure: String(error.message ?? error).slice(-600) });
  }
};
