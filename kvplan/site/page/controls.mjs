// The controls of each question, made from one list; a change calls back with the whole state.
import { element } from "./dom.mjs";

export const LENGTHS = [
  "512", "1k", "2k", "3k", "4k", "6k", "8k", "12k", "16k", "24k", "32k", "48k", "64k", "96k", "128k", "192k", "256k",
  "384k", "512k", "768k", "1m",
];
const SHARES = ["", ...Array.from({ length: 40 }, (_, step) => (0.6 + step / 100).toFixed(2))];
const SEATS = [
  "", "1", "2", "4", "8", "16", "32", "48", "64", "96", "128", "192", "256", "384", "512", "768", "1024", "2048",
];
const BATCHED = ["", "512", "1024", "2048", "4096", "8192", "16384", "32768", "65536"];
const SIZES = ["", "1", "2", "3", "4", "6", "8", "16", "32"];
const COUNTS = ["1", "2", "3", "4", "5", "6", "7", "8", "16", "32"];

export function fieldsOf(tab, known) {
  const auto = (names, word) => names.map((name) => [name === "auto" ? "" : name, name === "auto" ? word : name]);
  const shared = {
    model: { name: "model", label: "Model", kind: "model", known },
    weights: { name: "quantization", label: "Weights", kind: "select", width: "half", choices: auto(known.weights, "as published") },
    cache: { name: "kv_cache_dtype", label: "KV cache", kind: "select", width: "half", choices: auto(known.caches, "auto") },
    engine: { name: "engine", label: "vLLM release", kind: "text", example: `vllm@${known.release}`, width: "half" },
  };
  return { size: sizeFields, plan: planFields, explain: explainFields }[tab]?.(shared, known) ?? { main: [], more: [] };
}

function sizeFields(shared, known) {
  return {
    main: [
      shared.model,
      { name: "gpu", label: "GPU", kind: "gpu", known, width: "two" },
      { name: "gpus", label: "How many", kind: "select", width: "third", choices: COUNTS.map((count) => [count === "1" ? "" : count, count]) },
      { name: "ctx", label: "Longest sequence", kind: "slider", steps: LENGTHS, unit: "tokens" },
      shared.weights, shared.cache,
      { name: "gpu_memory_utilization", label: "gpu_memory_utilization", kind: "slider", steps: SHARES, blank: "default" },
      { name: "max_num_seqs", label: "max_num_seqs", kind: "slider", steps: SEATS, blank: "default" },
    ],
    more: [
      { name: "average", label: "Average sequence", kind: "text", example: "4k", width: "half" },
      shared.engine,
      { name: "max_num_batched_tokens", label: "max_num_batched_tokens", kind: "slider", steps: BATCHED, blank: "default" },
      { name: "tensor_parallel_size", label: "TP", kind: "slider", width: "third", steps: SIZES, blank: "auto" },
      { name: "pipeline_parallel_size", label: "PP", kind: "slider", width: "third", steps: SIZES, blank: "auto" },
      { name: "data_parallel_size", label: "DP", kind: "slider", width: "third", steps: SIZES, blank: "auto" },
      { name: "dtype", label: "dtype", kind: "select", width: "half", choices: known.dtypes.map((name) => [name === "auto" ? "" : name, name]) },
      { name: "block_size", label: "Block size", kind: "number", width: "half" },
      { name: "enable_expert_parallel", label: "Expert parallelism (EP)", kind: "check" },
      { name: "enforce_eager", label: "No CUDA graphs (enforce_eager)", kind: "check" },
    ],
  };
}

function planFields(shared) {
  return {
    main: [
      shared.model,
      { name: "users", label: "Users at once", kind: "number", width: "half", example: "40" },
      { name: "request_rate", label: "or requests/s", kind: "decimal", width: "half" },
      { name: "ctx_avg", label: "Average sequence", kind: "text", example: "4k", width: "half" },
      { name: "ctx_max", label: "Longest", kind: "text", example: "as average", width: "half" },
      { name: "slo", label: "Bounds in ms", kind: "text", example: "ttft:2000 tpot:50" },
      { name: "gpu", label: "GPUs, or all", kind: "text", example: "h100,h200" },
    ],
    more: [
      { name: "input_len", label: "Prompt", kind: "text", example: "tokens", width: "half" },
      { name: "output_len", label: "Answer", kind: "text", example: "tokens", width: "half" },
      { name: "max_gpus", label: "At most GPUs", kind: "number", width: "half" },
      { name: "budget", label: "$ per hour", kind: "decimal", width: "half" },
      shared.weights, shared.cache, shared.engine,
      { name: "worst_case", label: "Every sequence at its longest", kind: "check" },
    ],
  };
}

function explainFields(shared, known) {
  return {
    main: [
      { name: "log", label: "Start-up log of vLLM or SGLang", kind: "log" },
      { name: "model", label: "Model, if the log does not say", kind: "model", known, width: "half", optional: true },
      { name: "gpu", label: "GPU, if not said", kind: "text", example: "h100", width: "half" },
    ],
    more: [],
  };
}

const MAKERS = { model: modelField, gpu: gpuField, slider: sliderField, select: selectField, log: logField, check: checkField };

export function field(spec, value, onChange) {
  return (MAKERS[spec.kind] ?? textField)(spec, value ?? "", onChange);
}

function labelled(spec, control, ...more) {
  const label = element("label", { for: control.id }, spec.label, ...more);
  return element("div", { class: `field ${spec.width ?? ""}` }, label, control);
}

function textField(spec, value, onChange) {
  const isNumber = spec.kind === "number" || spec.kind === "decimal";
  const control = element("input", {
    id: `field-${spec.name}`, value, placeholder: spec.example ?? (spec.kind === "decimal" ? "none" : "default"), autocomplete: "off", spellcheck: "false",
    type: isNumber ? "number" : "text", min: isNumber ? (spec.kind === "number" ? "1" : "0") : null,
    step: spec.kind === "decimal" ? "any" : null,
    oninput: (event) => onChange(spec.name, event.target.value.trim()),
  });
  return labelled(spec, control);
}

function modelField(spec, value, onChange) {
  const list = element("datalist", { id: "models" }, spec.known.models.map((each) =>
    element("option", { value: each.name }, each.id)));
  const control = element("input", {
    id: `field-${spec.name}`, list: "models", value, autocomplete: "off", spellcheck: "false",
    placeholder: spec.optional ? "from the log" : "name, or org/name on the hub",
    onchange: (event) => onChange(spec.name, event.target.value.trim()),
    oninput: (event) => {
      const text = event.target.value.trim().toLowerCase();
      if (spec.known.names.has(text)) onChange(spec.name, event.target.value.trim());
    },
  });
  const made = labelled(spec, control);
  made.append(list);
  return made;
}

function gpuField(spec, value, onChange) {
  const options = spec.known.gpus.map((each) =>
    element("option", { value: each.id }, `${each.name.replace(/^NVIDIA /, "")} (${each.memory})`));
  const control = element("select", { id: "field-gpu", onchange: (event) => onChange("gpu", event.target.value) }, options);
  const wanted = value.toLowerCase();
  control.value = spec.known.gpus.find((each) => each.id === wanted || each.aliases.includes(wanted))?.id ?? "h100-sxm";
  return labelled(spec, control);
}

function selectField(spec, value, onChange) {
  const options = spec.choices.map(([name, text]) => element("option", { value: name }, text));
  const control = element("select", { id: `field-${spec.name}`, onchange: (event) => onChange(spec.name, event.target.value) }, options);
  control.value = value;
  if (control.value !== value) {
    control.append(element("option", { value }, value));
    control.value = value;
  }
  return labelled(spec, control);
}

function sliderField(spec, value, onChange) {
  const steps = spec.steps.includes(value) ? spec.steps : [...spec.steps, value];
  const shown = element("output", { for: `field-${spec.name}` });
  const words = (index) => (steps[index] === "" ? spec.blank ?? "the model's longest" : `${steps[index]} ${spec.unit ?? ""}`.trim());
  const control = element("input", {
    id: `field-${spec.name}`, type: "range", min: "0", max: String(steps.length - 1), step: "1",
    oninput: (event) => {
      show(event.target.value);
      onChange(spec.name, steps[event.target.value]);
    },
  });
  const show = (index) => {
    shown.textContent = words(index);
    control.setAttribute("aria-valuetext", words(index));
  };
  control.value = String(steps.indexOf(value));
  show(control.value);
  return labelled(spec, control, shown);
}

function checkField(spec, value, onChange) {
  const box = element("input", { type: "checkbox", onchange: (event) => onChange(spec.name, event.target.checked ? "1" : "") });
  box.checked = value !== "";
  return element("div", { class: "field" }, element("label", { class: "check" }, box, spec.label));
}

function logField(spec, value, onChange) {
  const control = element("textarea", {
    id: "field-log", placeholder: "Paste what the server printed, or drop the file here.", spellcheck: "false",
    oninput: (event) => onChange("log", event.target.value),
  });
  control.value = value;
  return labelled(spec, control);
}
