// Three questions as a person who has never seen the page would ask them: every click, choice and field counts as one.
import { isAnswered } from "./visits.mjs";

/** What a person does, counted, and the seconds from the first deed until the answer is there. */
class Person {
  constructor(page) {
    this.page = page;
    this.deeds = [];
    this.began = Date.now();
  }

  async click(where, word) {
    this.deeds.push(word);
    await this.page.click(where);
  }

  async fill(where, text, word) {
    this.deeds.push(word);
    await this.page.fill(where, text);
    await this.page.dispatchEvent(where, "change");
  }

  async choose(where, value, word) {
    this.deeds.push(word);
    await this.page.selectOption(where, value);
  }

  async done(where) {
    const text = (await this.page.innerText(where)).replace(/\s+/g, " ").trim();
    return { deeds: this.deeds, seconds: (Date.now() - this.began) / 1000, answer: text.slice(0, 200) };
  }
}

async function fitsMyCard(person) {
  await person.fill("#field-model", "Qwen/Qwen3-30B-A3B", "the model's name");
  await person.choose("#field-gpu", "rtx-4090", "the GPU");
  await person.page.waitForFunction(() => /fits/.test(document.querySelector(".change")?.innerText ?? "")
    && document.querySelector(".title").innerText.includes("4090"));
  const verdict = await person.done(".verdict");
  const change = await person.done(".change");
  return { ...change, answer: `${verdict.answer}; ${change.answer}` };
}

async function usersOnWhich(person) {
  await person.click("#tab-plan", "the tab Plan");
  await person.fill("#field-model", "llama-3.1-70b", "the model");
  await person.fill("#field-users", "40", "users");
  await person.fill("#field-ctx_avg", "4k", "length");
  await person.fill("#field-gpu", "h100, h200", "the GPUs");
  await person.click("button[type=submit]", "Find GPUs");
  await person.page.waitForFunction(isAnswered);
  return person.done(".best .verdict, .mistake");
}

async function whyStopped(person, log) {
  await person.click("#tab-explain", "the tab Explain a log");
  await person.fill("#field-log", log, "the log, pasted");
  await person.click("button[type=submit]", "Explain it");
  await person.page.waitForFunction(isAnswered);
  return person.done("#shown .warning, .mistake");
}

/** {question: {deeds, seconds, answer}}, each on the page as it opens. */
export async function pathsOf(page, log) {
  const found = {};
  const questions = [
    ["does Qwen3-30B-A3B fit my 4090", fitsMyCard],
    ["70B for 40 users on H100 or H200", usersOnWhich],
    ["why did my vLLM stop", whyStopped],
  ];
  for (const [question, walk] of questions) found[question] = await walk(new Person(page), log);
  return found;
}
