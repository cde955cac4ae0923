// The state is the link: everything behind the #, which no server sees. Arguments are those of the planner.

const NUMBERS = new Set([
  "gpu_memory_utilization", "max_num_seqs", "max_num_batched_tokens", "tensor_parallel_size", "pipeline_parallel_size",
  "data_parallel_size", "block_size", "users", "request_rate", "max_gpus", "budget", "cpu_offload_gb",
]);
const FLAGS = new Set(["enable_expert_parallel", "enforce_eager", "worst_case"]);
const LISTS = new Set(["price"]);
const PAGE = new Set(["tab", "gpus", "kvplan"]);

export const FIRST = { tab: "size", model: "llama-3.1-8b", gpu: "h100-sxm", ctx: "16k" };

export function readLink(text) {
  const found = Object.fromEntries(new URLSearchParams(text.replace(/^#/, "")));
  const pinned = {};
  for (const name of Object.keys(found)) {
    if (!name.startsWith("a.")) continue;
    pinned[name.slice(2)] = found[name];
    delete found[name];
  }
  const state = Object.keys(found).some((name) => name !== "kvplan") ? { tab: "size", ...found } : { ...FIRST };
  return { state, pinned: Object.keys(pinned).length ? pinned : null };
}

export function writeLink(state, pinned, version) {
  const words = new URLSearchParams(Object.entries(state).filter(([, value]) => value !== "" && value !== undefined));
  for (const [name, value] of Object.entries(pinned ?? {})) words.set(`a.${name}`, value);
  if (version) words.set("kvplan", version);
  return "#" + words.toString();
}

/** What the planner is asked: numbers as numbers, flags as flags, a counted GPU as ``4xh200``. */
export function argumentsOf(state, names) {
  const found = {};
  for (const name of names) {
    const value = state[name];
    if (value === undefined || value === "" || PAGE.has(name) || LISTS.has(name)) continue;
    if (FLAGS.has(name)) found[name] = true;
    else found[name] = NUMBERS.has(name) && value.trim() !== "" && !Number.isNaN(Number(value)) ? Number(value) : value;
  }
  if (found.gpu && state.gpus && state.gpus !== "1") found.gpu = `${state.gpus}x${found.gpu}`;
  return found;
}

/** The reverse, for a change that the planner proposes. */
export function stateOf(given) {
  const found = {};
  for (const [name, value] of Object.entries(given)) found[name] = value === true ? "1" : String(value);
  const counted = /^(\d+)x(.+)$/.exec(found.gpu ?? "");
  if (counted) [found.gpus, found.gpu] = [counted[1], counted[2]];
  return found;
}
