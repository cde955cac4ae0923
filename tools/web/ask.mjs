// Answers the questions on standard input (a JSON list) with the planner under Pyodide, as the page's worker does: by a
// Python that goes on where another, which was kept, stood.
//   node ask.mjs SITE < questions.json > answers.json
import fs from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";

process.on("uncaughtException", (error) => {
  console.error(String(error.stack ?? error).slice(-2000));
  process.exit(1);
});

const site = path.resolve(process.argv[2]);
const load = (...names) => import(pathToFileURL(path.join(site, ...names)));
const indexURL = path.join(site, "pyodide") + path.sep;
const [pyodide, engine] = [await load("pyodide", "pyodide.mjs"), await load("pyodide", "pyodide.asm.mjs")];
const { kept, resumed, withPlanner } = await load("python.mjs");
const first = await pyodide.loadPyodide({ indexURL, _makeSnapshot: true });
const { memory, files } = kept(withPlanner(first, new Uint8Array(fs.readFileSync(path.join(site, "kvplan.zip")))));
const python = await resumed({ pyodide, engine, indexURL, memory, files: await files.arrayBuffer() });
const bridge = python.pyimport("kvplan.web.bridge");
const questions = JSON.parse(fs.readFileSync(0, "utf8"));
process.stdout.write(JSON.stringify(questions.map((question) => JSON.parse(bridge.answer(JSON.stringify(question))))));
