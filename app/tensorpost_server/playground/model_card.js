/** The card of an ONNX model: it is stored on the server, its inputs are filled, and its outputs are shown. */

import { absolute, hasKey, run, storeModel } from "./api.js";
import { element, select } from "./forms.js";
import { readFrame, writeFrame } from "./frame.js";
import { SCALES, filled, misfit, pictureFor, pictureLayout, sidesFor, sizesText } from "./model_inputs.js";
import { readNpy, writeNpy } from "./npy.js";
import { bytesText, elementCount, shapeText } from "./tensor.js";
import { View, Viewer, formatNumber } from "./viewer.js";

const $ = (selector) => document.querySelector(selector);
const NPY = "application/x-npy", FRAME = "application/vnd.safetensors";
const TOP = 5, FIRST = 8, LEAST_SIDE = 8;
const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

export class ModelCard {
  /** @type {{file: File, said: object, name: string} | null} */
  #model = null;
  /** What each input is filled with, by name. */
  #chosen = {};
  /** The picture of each output that is one, by name. */
  #figures = {};
  #round = 0;

  /**
   * @param {{source: () => object, save: (bytes: Uint8Array, name: string) => void, announce: (text: string) => void,
   *   unauthorized: (message: string) => void}} page `source` is the page's input: {pixels} or {tensor}
   */
  constructor(page) {
    this.page = page;
    $("#model-run").addEventListener("click", () => this.run());
    $("#model-close").addEventListener("click", () => this.#close());
    for (const button of document.querySelectorAll("#model [data-copy]"))
      button.addEventListener("click", () => this.#copy(button));
  }

  /** Stores the file on the server, and shows what it takes. */
  async open(file) {
    $("#model").hidden = false;
    $("#model").scrollIntoView({ block: "nearest" });
    this.#show(`${file.name} · ${bytesText(file.size)} · being stored …`);
    try {
      const said = await storeModel(new Uint8Array(await file.arrayBuffer()));
      this.#model = { file, said, name: nameOf(file) };
    } catch (error) {
      this.#model = null;
      this.#show(file.name);
      return this.#fail(error);
    }
    const nodes = `${this.#model.said.nodes} node${this.#model.said.nodes === 1 ? "" : "s"}`;
    this.#show(`${file.name} · ${bytesText(file.size)} · ${nodes} · stored on this server`);
    this.page.announce(`${file.name} is stored`);
    this.#chosen = {};
    this.#figures = {};
    this.sourceChanged();
  }

  /** The page has another picture or array: inputs that are filled with it are filled anew. */
  sourceChanged() {
    if (!this.#model) return;
    let free = true; // the first input that the page's own fits gets it
    for (const input of this.#model.said.inputs) {
      const fits = this.#fitsPage(input), before = this.#chosen[input.name];
      if (!before || before.how === "number" || (before.how === "page" && !fits))
        this.#chosen[input.name] = { scale: "unit", sides: "", number: "0", sizes: "", file: null, ...before, how: fits && free ? "page" : "number" };
      free &&= this.#chosen[input.name].how !== "page";
    }
    this.#drawInputs();
    this.run();
  }

  async run() {
    if (!this.#model) return;
    const round = ++this.#round, { said } = this.#model;
    $("#model-error").textContent = "";
    try {
      const tensors = Object.fromEntries(said.inputs.map((input) => [input.name, this.#tensor(input)]));
      this.#drawCode(said);
      const single = said.inputs.length === 1, only = Object.values(tensors)[0];
      const answer = await run({ path: `v1/graphs/${said.name}`, contentType: single ? NPY : FRAME, accept: FRAME,
        body: single ? writeNpy(only) : writeFrame(tensors) });
      if (round !== this.#round) return;
      this.#drawOutputs(said, readFrame(answer.bytes));
      $("#model-time").textContent = `${formatNumber(answer.total, 3)} ms, computed by ${answer.device}`;
      $("#model").dataset.round = String(round); // tests wait for it
    } catch (error) {
      if (round === this.#round) this.#fail(error);
    }
  }

  // ---- inputs --------------------------------------------------------------------------------------------------------

  /** The page's input as this one wants it; null if it cannot be. */
  #fromPage(input) {
    const { pixels, tensor } = this.page.source() ?? {}, { scale = "unit", sides = "" } = this.#chosen[input.name] ?? {};
    if (pixels) return pictureLayout(input) && pictureFor(input, pixels, scale, sides);
    return tensor && !misfit(input, tensor) ? tensor : null;
  }

  #fitsPage(input) {
    const { pixels, tensor } = this.page.source() ?? {};
    return Boolean(pixels ? pictureLayout(input) : tensor && !misfit(input, tensor));
  }

  #tensor(input) {
    const { how, number, sizes, file } = this.#chosen[input.name];
    if (how === "file" && !file) throw new Error(`Choose a file for ${input.name}.`);
    if (how === "page") {
      const found = this.#fromPage(input);
      if (!found) throw new Error(`The input of the page does not fit ${input.name}, which is ${input.data_type ?? "any type"}, ${sizesText(input)}.`);
      return found;
    }
    return how === "file" ? file : filled(input, Number(number), sizes);
  }

  #drawInputs() {
    $("#model-inputs").replaceChildren(...this.#model.said.inputs.map((input) => this.#inputRow(input)));
  }

  #inputRow(input) {
    const chosen = this.#chosen[input.name], redraw = () => { this.#drawInputs(); this.run(); };
    const isPicture = Boolean(this.page.source()?.pixels), id = `model-input-${this.#model.said.inputs.indexOf(input)}`;
    const ways = [["page", isPicture ? "the picture of this page" : "the array of this page"], ["file", "an npy file"], ["number", "one number"]];
    const how = select(ways, chosen.how, (way) => { chosen.how = way; redraw(); });
    how.id = id;
    const more = [];
    if (chosen.how === "page" && isPicture && input.data_type !== "uint8") {
      const scale = select(Object.entries(SCALES).map(([key, { text }]) => [key, text]), chosen.scale, (key) => { chosen.scale = key; redraw(); });
      scale.setAttribute("aria-label", `Range of the picture for ${input.name}`);
      more.push(scale);
    }
    const layout = pictureLayout(input);
    if (chosen.how === "page" && isPicture && layout && (layout.height === null || layout.width === null)) {
      const usual = sidesFor(layout, this.page.source().pixels, "").join(", ");
      more.push(element("input", { value: chosen.sides, placeholder: usual, size: "10", "aria-label": `Rows and columns of the picture for ${input.name}`, onchange: ({ target }) => { chosen.sides = target.value; this.run(); } }));
    }
    if (chosen.how === "file")
      more.push(element("input", { type: "file", accept: ".npy", "aria-label": `File for ${input.name}`, onchange: ({ target }) => this.#readFile(input, target.files[0]) }));
    if (chosen.how === "number") {
      more.push(element("input", { value: chosen.number, inputmode: "decimal", "aria-label": `Number for ${input.name}`, onchange: ({ target }) => { chosen.number = target.value; this.run(); } }));
      if (input.sizes === null || input.sizes.some((size) => !Number.isInteger(size)))
        more.push(element("input", { value: chosen.sizes, placeholder: (input.sizes ?? [1]).map((size) => (Number.isInteger(size) ? size : 1)).join(", "), "aria-label": `Sizes of ${input.name}`, onchange: ({ target }) => { chosen.sizes = target.value; this.run(); } }));
    }
    const save = element("button", { type: "button", class: "quiet", "aria-label": `Save ${input.name} as npy`, onclick: () => this.#saveInput(input) }, "Save");
    return element("div", { class: "model-row" }, element("label", { for: id }, element("strong", {}, input.name), " ",
      element("span", { class: "about" }, `${input.data_type ?? "any type"} · ${sizesText(input)}`)), element("div", { class: "row" }, how, ...more, save));
  }

  async #readFile(input, file) {
    if (!file) return;
    try {
      const found = readNpy(new Uint8Array(await file.arrayBuffer())), reason = misfit(input, found);
      if (reason) throw new Error(`${file.name} does not fit ${input.name}: ${reason}.`);
      this.#chosen[input.name].file = found;
      this.run();
    } catch (error) {
      this.#fail(error);
    }
  }

  #saveInput(input) {
    try {
      this.page.save(writeNpy(this.#tensor(input)), `${fileStem(input.name)}.npy`);
    } catch (error) {
      this.#fail(error);
    }
  }

  // ---- outputs -------------------------------------------------------------------------------------------------------

  #drawOutputs(said, tensors) {
    const shownIn = [], parts = said.outputs.map(({ name }) => {
      const tensor = tensors[name];
      if (!tensor) return element("div", { class: "model-output" }, element("h3", {}, name), element("p", {}, "Of a type that the page does not show."));
      const about = element("span", { class: "about" }, `${tensor.type} · ${shapeText(tensor.shape)}`);
      const save = element("button", { type: "button", class: "quiet save", "aria-label": `Save ${name} as npy`, onclick: () => this.page.save(writeNpy(tensor), `${fileStem(name)}.npy`) }, "Save");
      const shown = isPicture(tensor) ? this.#figure(name, shownIn, tensor) : isVector(tensor) ? topValues(name, tensor) : firstValues(tensor);
      return element("div", { class: "model-output" }, element("h3", {}, name, " ", about, " ", save), shown);
    });
    $("#model-outputs").replaceChildren(...parts);
    for (const [viewer, tensor] of shownIn) viewer.show(tensor, {}); // when their boxes have sizes
  }

  #figure(name, shownIn, tensor) {
    const { figure, viewer } = (this.#figures[name] ??= this.#newFigure(name));
    shownIn.push([viewer, tensor]);
    return figure;
  }

  #newFigure(name) {
    const canvas = element("canvas", { tabindex: "0", role: "application", "aria-roledescription": "picture with a cursor", "aria-label": name, "aria-describedby": "viewer-help" });
    const figure = element("figure", {}, canvas, element("p", { class: "readout", "aria-hidden": "true" }));
    return { figure, viewer: new Viewer(figure, new View(), name, this.page.announce) };
  }

  // ---- code and messages ---------------------------------------------------------------------------------------------

  #drawCode(said) {
    const { file, name } = this.#model, server = absolute(".").replace(/\/$/, "");
    const key = hasKey() ? ' \\\n  -H "authorization: Bearer $TENSORPOST_API_KEY"' : "", files = said.inputs.map((input) => [input.name, `${fileStem(input.name)}.npy`]);
    const several = said.outputs.length > 1, [accept, output] = several ? ["application/x-npz", "output.npz"] : [NPY, "output.npy"];
    const parts = files.map(([input, path]) => `-F ${quoted(`${input}=@${path}`)}`).join(" ");
    $("#model-curl").textContent = `curl -sS --fail-with-body -T ${quoted(file.name)} ${server}/v1/graphs/${name}${key} -o stored.json
curl -sS --fail-with-body ${parts} \\
  -H 'accept: ${accept}' ${server}/v1/graphs/${name}${key} -o ${output}
`;
    const inputs = files.map(([input, path]) => `${JSON.stringify(input)}: np.load(${JSON.stringify(path)})`).join(", ");
    $("#model-python").textContent = `import numpy as np
from tensorpost import Client

with Client("${server}") as tp:${hasKey() ? "  # the key: TENSORPOST_API_KEY" : ""}
    model = tp.store(${JSON.stringify(file.name)}, ${JSON.stringify(name)})
    result = model({${inputs}})
for name, array in result.items():
    print(name, array.dtype, array.shape)
    np.save(f"{name.replace('/', '_')}.npy", array)
`;
    const names = files.map(([, path]) => path).join(", ");
    $("#model-hint").textContent = names ? `${names}: what Save beside each input gives.` : "";
  }

  async #copy(button) {
    const code = $(button.dataset.copy), before = button.textContent;
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch { // no permission, or the page did not come over https or from this machine
      getSelection().selectAllChildren(code);
      document.execCommand("copy");
    }
    button.textContent = "Copied";
    this.page.announce("Copied");
    setTimeout(() => (button.textContent = before), 1500);
  }

  #show(about) {
    $("#model-about").textContent = about;
    $("#model-error").textContent = "";
    $("#model-time").textContent = "";
    for (const id of ["#model-inputs", "#model-outputs"]) $(id).replaceChildren();
    for (const id of ["#model-curl", "#model-python", "#model-hint"]) $(id).textContent = "";
  }

  #fail(error) {
    if (error.status === 401) return this.page.unauthorized(error.message);
    $("#model-error").textContent = [error.message, ...(error.violations ?? []).map(({ message }) => message).filter((message) => !error.message.includes(message))].join(" ");
    $("#model-outputs").replaceChildren();
  }

  #close() {
    this.#model = null;
    this.#round++;
    $("#model").hidden = true;
  }
}

/** A name that the server takes, from the file's. */
function nameOf({ name }) {
  const stem = name.replace(/\.onnx$/i, "").replace(/[^A-Za-z0-9_.-]/g, "_").replace(/^[.-]+/, "").slice(0, 90);
  return stem || "model";
}

const fileStem = (name) => name.replace(/[^A-Za-z0-9_.-]/g, "_");
const isVector = ({ shape }) => elementCount(shape) > 1 && Math.max(...shape) === elementCount(shape);
const isPicture = ({ shape }) => shape.length > 1 && shape.slice(-3).filter((size) => size >= LEAST_SIDE).length > 1 && elementCount(shape) > 0;

/** The largest values of a vector, with their indices: of a classifier, the classes. */
function topValues(name, { values }) {
  const numbers = Array.from(values, Number), places = numbers.map((_, place) => place);
  places.sort((a, b) => numbers[b] - numbers[a] || a - b);
  const rows = places.slice(0, TOP).map((place) => element("tr", {}, element("th", { scope: "row" }, String(place)), element("td", {}, formatNumber(values[place], 5))));
  return element("table", { "aria-label": `Largest values of ${name}` }, element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "Index"), element("th", { scope: "col" }, "Value"))), element("tbody", {}, ...rows));
}

function firstValues({ values, shape }) {
  const shown = Array.from(values.slice(0, FIRST), (value) => formatNumber(value, 5)).join(", ");
  return element("p", { class: "values" }, elementCount(shape) > FIRST ? `${shown}, …` : shown || "no elements");
}
