// Answers the questions on standard input (a JSON list) with the planner under Pyodide, as the page's worker does.
//   node ask.mjs SITE < questions.json > answers.json
import fs from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";

process.on("uncaughtException", (error) => {
  console.error(String(error.stack ?? error).slice(-2000));
  process.exit(1);
});

const site = path.resolve(process.argv[2]);
const { loadPyodide } = await import(pathToFileURL(path.join(site, "pyodide", "pyodide.mjs")));
const python = await loadPyodide({ indexURL: path.join(site, "pyodide") + path.sep });
const archive = new Uint8Array(fs.readFileSync(path.join(site, "kvplan.zip")));
python.FS.mkdirTree("/planner");
python.unpackArchive(archive, "zip", { extractDir: "/planner" });
python.runPython("import sys; sys.path.insert(0, '/planner')");
const bridge = python.pyimport("kvplan.web.bridge");
const questions = JSON.parse(fs.readFileSync(0, "utf8"));
process.stdout.write(JSON.stringify(questions.map((question) => JSON.parse(bridge.answer(JSON.stringify(question))))));
