// An answer to send: Markdown and JSON as the planner wrote them, a picture of the bar.
import { colourOf, copied, element, say } from "./dom.mjs";

export function copyButtons(answer, link) {
  const button = (text, run) => element("button", { type: "button", class: "plain", onclick: run }, text);
  return element("div", { class: "row-buttons" },
    button("Copy link", () => copied(link(), "Link")),
    answer.markdown ? button("Copy Markdown", () => copied(markdown(answer, link()), "Markdown")) : null,
    answer.document ? button("Copy JSON", () => copied(answer.document, "JSON")) : null,
    answer.view.bar ? button("Save PNG", () => savePicture(answer)) : null);
}

function markdown(answer, link) {
  return `${answer.markdown}\n\`${answer.command}\` (kvplan ${answer.version}, ${link})\n`;
}

const SIZE = { width: 1200, height: 420 };

function savePicture(answer) {
  const canvas = document.createElement("canvas");
  Object.assign(canvas, SIZE);
  draw(canvas.getContext("2d"), answer);
  canvas.toBlob((blob) => {
    const address = URL.createObjectURL(blob);
    element("a", { href: address, download: "kvplan.png" }).click();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
    say("Picture saved.");
  });
}

function draw(context, { view, command, version }) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  const write = (text, x, y, font, fill) => {
    context.font = `${font} system-ui, sans-serif`;
    context.fillStyle = fill;
    context.fillText(text, x, y, SIZE.width - x - 40);
  };
  context.fillStyle = colour("card");
  context.fillRect(0, 0, SIZE.width, SIZE.height);
  write(view.title, 40, 60, "24px", colour("quiet"));
  write(`${view.verdict.headline} ${view.verdict.sentence}`, 40, 118, "bold 40px", colour("strong"));
  write(view.verdict.range ?? "", 40, 156, "20px", colour("quiet"));
  const width = SIZE.width - 80;
  let left = 40;
  const slots = view.bar.parts.length;
  view.bar.parts.forEach((part, index) => {
    context.fillStyle = colour(colourOf(part.kind));
    context.fillRect(left, 190, width * part.share, 60);
    left += width * part.share;
    const x = 40 + (width / slots) * index;
    context.fillRect(x, 281, 14, 14);
    write(part.kind, x + 22, 294, "18px", colour("quiet"));
    write(part.text, x + 22, 320, "bold 20px", colour("strong"));
  });
  write(`${command}   (kvplan ${version})`, 40, 384, "17px", colour("quiet"));
}
