// Two threads with the planner: one answers sliders at once, the other what takes longer, and can be stopped.

class Thread {
  constructor({ onStage, keeps } = {}) {
    this.address = new URL(keeps ? "worker.mjs?keeps" : "worker.mjs", import.meta.url);
    this.waiting = new Map();
    this.mounts = [];
    this.next = 0;
    this.onStage = onStage;
    this.open();
  }

  open() {
    this.ready = new Promise((resolve, reject) => {
      this.worker = new Worker(this.address, { type: "module" });
      this.worker.onerror = (event) => reject(new Error(event.message || "the worker did not start"));
      this.worker.onmessage = ({ data }) => {
        if (data.stage) {
          this.onStage?.(data.stage, data.share);
          if (data.share === 100) resolve();
        } else if (data.id === undefined) reject(new Error(data.failure));
        else if (data.share !== undefined) this.waiting.get(data.id)?.onShare?.(data.share);
        else this.settle(data);
      };
    });
    this.ready.then(() => (this.isReady = true), () => {});
    for (const each of this.mounts) this.worker.postMessage({ id: -1, mount: each });
  }

  settle({ id, answer, failure }) {
    const promise = this.waiting.get(id);
    this.waiting.delete(id);
    if (failure !== undefined) promise?.resolve({ error: `The planner failed: ${failure}`, hint: null });
    else promise?.resolve(answer);
  }

  /** onShare: called with the share of a plan that is done. */
  ask(question, given, onShare) {
    const id = this.next++;
    this.worker.postMessage({ id, question: { ask: question, arguments: given } });
    return new Promise((resolve) => this.waiting.set(id, { resolve, onShare }));
  }

  mount(files) {
    this.mounts.push(files);
    this.worker.postMessage({ id: -1, mount: files });
  }

  /** Stop what it does, and start anew; whoever waits is told by null. */
  restart() {
    this.worker.terminate();
    this.isReady = false;
    for (const { resolve } of this.waiting.values()) resolve(null);
    this.waiting.clear();
    this.open();
  }
}

export class Planner {
  constructor(onStage) {
    this.quick = new Thread({ onStage });
    this.files = [];
    this.pending = null;
    this.isAsking = false;
    this.ready = this.quick.ready;
  }

  /** The newest question of a slider; of those that came meanwhile only the last is asked. null: overtaken. */
  memory(given) {
    this.pending?.resolve(null);
    return new Promise((resolve) => {
      this.pending = { given, resolve };
      this.drain();
    });
  }

  async drain() {
    if (this.isAsking || !this.pending) return;
    const { given, resolve } = this.pending;
    this.pending = null;
    this.isAsking = true;
    const answer = await this.quick.ask("memory", given);
    this.isAsking = false;
    resolve(answer);
    this.drain();
  }

  /** What takes longer, in the second thread, which starts when it is first needed. */
  async slowly(question, given, onShare) {
    this.slow ??= this.second();
    const thread = this.slow.isReady || question === "plan" || question === "explain" ? this.slow : this.quick;
    return thread.ask(question, given, onShare);
  }

  /** It keeps what has started for the next visit: nobody waits for it yet. */
  second() {
    const made = new Thread({ keeps: true });
    for (const each of this.files) made.mount(each);
    return made;
  }

  stop() {
    this.slow?.restart();
  }

  mount(files) {
    this.files.push(files);
    this.quick.mount(files);
    this.slow?.mount(files);
  }
}
